"""Banks: what a network says of a data set, extracted once and replayed."""
