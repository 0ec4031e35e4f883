//! Where the numbers of a tensor come from when a file is written: slices, other files, or whoever can read a range.
//!
//! A writer asks for each tensor once, in pieces, from its first element to its last.

use std::collections::BTreeMap;

use plimsoll_plan::spec::Param;

use crate::write::TensorView;
use crate::{ModelError, WeightFiles};

/// Somebody who has tensors.
pub trait TensorSource {
    /// Reads elements of a tensor, from `first` on, as many as `out` has.
    fn read(&mut self, name: &str, first: usize, out: &mut [f32]) -> Result<(), ModelError>;
}

impl<F: FnMut(&str, usize, &mut [f32]) -> Result<(), ModelError>> TensorSource for F {
    fn read(&mut self, name: &str, first: usize, out: &mut [f32]) -> Result<(), ModelError> {
        self(name, first, out)
    }
}

impl TensorSource for &WeightFiles {
    fn read(&mut self, name: &str, first: usize, out: &mut [f32]) -> Result<(), ModelError> {
        self.fill_part(name, first, out)
    }
}

/// Slices that are known to be exactly the tensors asked for.
#[derive(Debug)]
pub struct Views<'a> {
    by_name: BTreeMap<&'a str, &'a [f32]>,
}

impl<'a> Views<'a> {
    /// Checks that each parameter is given once, with its shape, and that nothing else is given.
    pub fn new(params: &[Param], given: &[TensorView<'a>]) -> Result<Views<'a>, ModelError> {
        let mut left: BTreeMap<&str, &TensorView<'a>> = BTreeMap::new();
        for tensor in given {
            if left.insert(tensor.name, tensor).is_some() {
                return Err(ModelError::GivenTwice { tensor: tensor.name.into() });
            }
        }
        let mut by_name = BTreeMap::new();
        for param in params {
            let Some(tensor) = left.remove(param.name.as_str()) else {
                return Err(ModelError::NotGiven { tensor: param.name.clone() });
            };
            if tensor.shape != param.shape {
                let (tensor, got) = (param.name.clone(), tensor.shape.to_vec());
                return Err(ModelError::GivenShape { tensor, expected: param.shape.clone(), got });
            }
            if tensor.data.len() != param.elements() {
                let (expected, got) = (param.elements(), tensor.data.len());
                return Err(ModelError::SliceLength { tensor: param.name.clone(), expected, got });
            }
            by_name.insert(tensor.name, tensor.data);
        }
        match left.keys().next() {
            Some(name) => Err(ModelError::NoParameter { tensor: name.to_string() }),
            None => Ok(Views { by_name }),
        }
    }
}

impl TensorSource for Views<'_> {
    fn read(&mut self, name: &str, first: usize, out: &mut [f32]) -> Result<(), ModelError> {
        let Some(data) = self.by_name.get(name) else {
            return Err(ModelError::NotGiven { tensor: name.into() });
        };
        let end = first.checked_add(out.len());
        let part = end.and_then(|end| data.get(first..end)).ok_or_else(|| ModelError::PartRange {
            tensor: name.into(),
            elements: data.len(),
            first,
            got: out.len(),
        })?;
        out.copy_from_slice(part);
        Ok(())
    }
}
