"""Stage state on disk, and its merging into the original model's state dict."""
