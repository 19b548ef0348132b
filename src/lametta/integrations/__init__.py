"""lametta inside other libraries: one module for each, which imports it only when used."""
