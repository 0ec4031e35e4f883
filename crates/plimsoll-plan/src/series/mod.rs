//! A `cnn-lstm` as tapes.
//!
//! Rows are steps and columns are channels, from the batch to the last step of the LSTM. A block of convolutions keeps its
//! input and what its convolution made, or its input alone; norm, activation, dropout and pooling are one op, whose parts
//! are never kept. The LSTM keeps its gates, or its cells every so many steps. No tensor has steps times steps.

mod attention;
mod conv;
mod heads;
mod recurrent;
mod train;

pub(crate) use recurrent::distances;
pub(crate) use train::{eval_tape, micro_tape};

/// Keys of the places where something is dropped.
mod places {
    /// Of block 0; the others follow.
    pub const CONV: u32 = 1;
    /// Behind layer 0 of the LSTM; the others follow.
    pub const LSTM: u32 = 0x100;
    /// Behind the LSTM.
    pub const LSTM_OUT: u32 = 0x200;
    /// Weights of attention.
    pub const ATTENTION: u32 = 0x201;
    /// What attention adds.
    pub const ATTENDED: u32 = 0x202;
    /// The first hidden layer of the first head; those of a head follow.
    pub const HEADS: u32 = 0x300;
    /// From head to head.
    pub const PER_HEAD: u32 = 0x40;
}
