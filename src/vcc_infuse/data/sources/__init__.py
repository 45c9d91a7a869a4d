"""Where datasets come from: folders and zips, torchvision, Fashion-MNIST."""
