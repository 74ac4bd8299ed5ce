"""A convolutional network on scikit-learn's handwritten digits, trained over several processes."""
