"""Data sets as a resource: what a ``SampleSet`` says, what is known of it, and how programs name it."""
