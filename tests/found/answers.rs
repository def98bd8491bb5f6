//! How answers are made: templates, tokens that end them, recommended options, vocabularies.
