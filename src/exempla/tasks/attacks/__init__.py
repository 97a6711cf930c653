"""Parts of `attack`: gradients in input space, projected ascent, and the result."""
