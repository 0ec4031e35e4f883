//! Footprint.
