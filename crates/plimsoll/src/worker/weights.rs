//! The first weights of a run: read from the model's files, or drawn.

use plimsoll_engine::Engine;
use plimsoll_model::init::fill_random_part;
use rayon::prelude::*;

use crate::prepare::Prepared;
use crate::render::{Fail, OrFail};

/// Elements drawn at a time.
const CHUNK: usize = 1 << 16;

/// Fills every parameter.
pub fn fill_weights(engine: &mut Engine, prepared: &Prepared, seed: u64) -> Result<(), Fail> {
    for index in 0..engine.program().store.params.len() {
        let param = engine.program().store.params[index].param.clone();
        let into = engine.param_mut(index);
        match &prepared.weights {
            Some(files) => files.fill(&param.name, into).or_usage()?,
            None => {
                let factor = prepared.folder.init_factor();
                into.par_chunks_mut(CHUNK).enumerate().for_each(|(nth, part)| {
                    fill_random_part(&param, factor, seed, nth * CHUNK, part);
                });
            }
        }
    }
    Ok(())
}
