//! What one update is asked for, and what came of it. A number that is not finite never reaches weights or state.

/// What one micro-batch belongs to.
#[derive(Clone, Copy, Debug)]
pub struct MicroStep {
    /// Which update, from 0.
    pub update: u64,
    /// Samples in the slot.
    pub samples: usize,
    /// Index of its first sample in the effective batch.
    pub first_sample: u32,
    /// Learning rate of this update, where the optimizer has one.
    pub lr: Option<f64>,
}

/// What a micro-batch or an evaluation batch cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Loss {
    /// Sum over target tokens.
    pub sum: f64,
    /// Target tokens.
    pub tokens: u64,
}

impl Loss {
    /// Mean over target tokens.
    pub fn mean(&self) -> f64 {
        self.sum / self.tokens.max(1) as f64
    }

    /// Adds another batch.
    pub fn add(&mut self, other: Loss) {
        self.sum += other.sum;
        self.tokens += other.tokens;
    }
}

/// What was found not to be finite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotFinite {
    /// The loss of a micro-batch.
    Loss,
    /// A gradient: an element, or the sum of squares of 1024 of them, which optimizers and norm would meet next.
    Gradient,
    /// A gradient of 16-bit floats, at a loss scale that was too large and is halved now.
    ScaledGradient,
}

/// What an update came to; with the loss of the whole effective batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Updated {
    /// Every weight was updated.
    Done {
        /// The loss.
        loss: Loss,
        /// Norm of the mean gradient, before it was clipped.
        norm: f64,
    },
    /// Nothing was changed: weights and state are those of before, to the bit.
    Skipped {
        /// The loss.
        loss: Loss,
        /// Why.
        what: NotFinite,
    },
    /// A gradient that was not finite came up when other weights had been updated on the way (updates in the backward
    /// pass only). The weights are between two steps: neither to be saved nor trained on.
    Torn {
        /// The loss.
        loss: Loss,
    },
}

impl Updated {
    /// The loss of the whole effective batch.
    pub fn loss(&self) -> Loss {
        match self {
            Updated::Done { loss, .. } | Updated::Skipped { loss, .. } | Updated::Torn { loss } => *loss,
        }
    }
}

/// An update that is under way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Open {
    /// Loss so far.
    pub loss: Loss,
    /// A micro-batch was seen.
    pub begun: bool,
    /// Why nothing will come of it.
    pub stopped: Option<NotFinite>,
    /// A weight was updated on the way.
    pub changed: bool,
    /// Norm of the mean gradient, once it is known.
    pub norm: f64,
}

impl Open {
    /// What the update came to.
    pub fn close(self) -> Updated {
        let Open { loss, stopped, changed, norm, .. } = self;
        match stopped {
            None => Updated::Done { loss, norm },
            Some(_) if changed => Updated::Torn { loss },
            Some(what) => Updated::Skipped { loss, what },
        }
    }
}
