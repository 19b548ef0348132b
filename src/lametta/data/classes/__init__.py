"""Names of classes, and the hierarchy that leads from one set to another."""
