"""Parts of `clean`: how much each training example harms a target."""
