//! Choice.
