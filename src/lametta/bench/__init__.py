"""The benchmark: experiments as files, cells, metrics, selection and the report."""
