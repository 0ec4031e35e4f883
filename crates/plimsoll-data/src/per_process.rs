//! What each process has for itself, though it is reached by what a fork copies.
//!
//! A fork copies the thread that asked for it and no other: a lock that another one holds stays locked in the child, and sockets and
//! wakers are shared with the parent. Invariant: nobody gets what another process made, and nobody drops it either.

use std::sync::OnceLock;

/// A value of each process, made by its first use there; where it was made first, at once.
#[derive(Debug)]
pub struct PerProcess<T> {
    process: u32,
    /// There until the end.
    own: Option<T>,
    of_fork: OnceLock<Box<PerProcess<T>>>,
}

impl<T> PerProcess<T> {
    /// With the value of this process.
    pub fn new(own: T) -> PerProcess<T> {
        PerProcess { process: std::process::id(), own: Some(own), of_fork: OnceLock::new() }
    }

    /// The value of this process; a fork makes one.
    pub fn get(&self, make: impl Fn() -> T) -> &T {
        let mut held = self;
        loop {
            match &held.own {
                Some(own) if held.process == std::process::id() => return own,
                _ => held = held.of_fork.get_or_init(|| Box::new(PerProcess::new(make()))),
            }
        }
    }
}

impl<T: Default> Default for PerProcess<T> {
    fn default() -> Self {
        PerProcess::new(T::default())
    }
}

impl<T> Drop for PerProcess<T> {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            std::mem::forget(self.own.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn another_process_makes_its_own_and_leaves_the_first_alone() {
        let (first, second) = (Arc::new(1), Arc::new(2));
        let mut held = PerProcess::new(first.clone());
        assert_eq!(**held.get(|| unreachable!()), 1);
        // As a fork sees it: made by a process that it is not.
        held.process = 0;
        assert_eq!(**held.get(|| second.clone()), 2);
        assert_eq!(**held.get(|| unreachable!()), 2);
        drop(held);
        assert_eq!((Arc::strong_count(&first), Arc::strong_count(&second)), (2, 1));
    }
}
