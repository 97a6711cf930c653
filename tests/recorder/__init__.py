"""Recording a training, and explaining with what was recorded."""
