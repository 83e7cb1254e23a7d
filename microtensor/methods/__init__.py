"""Groups of Tensor methods, mixed into `tensor.Tensor`."""
