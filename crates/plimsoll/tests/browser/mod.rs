//! What the tests of the web page need: a run folder whose journal grows, the real binary that serves it, and a real
//! browser that looks at it.

pub mod chromium;
pub mod served;
pub mod story;
