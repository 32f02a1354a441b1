//! The corpus of the mirror's fuzz target.
mod corpus;
