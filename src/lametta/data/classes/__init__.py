"""Class names and their hierarchy."""
