//! The first weights of a run: read from the model's files, or drawn.

use plimsoll_engine::Stepper;
use plimsoll_model::ModelError;
use plimsoll_model::init::fill_random_part;
use plimsoll_plan::tape::ParamPlace;
use rayon::prelude::*;

use crate::prepare::Prepared;
use crate::render::{Fail, OrFail};

/// Elements drawn at a time.
const CHUNK: usize = 1 << 16;

/// Fills every parameter.
pub fn fill_weights(engine: &mut Stepper, prepared: &Prepared, seed: u64) -> Result<(), Fail> {
    fill(engine, prepared, seed, |_| true)
}

/// Fills what is only read: a checkpoint has the rest.
pub fn fill_frozen(engine: &mut Stepper, prepared: &Prepared, seed: u64) -> Result<(), Fail> {
    fill(engine, prepared, seed, |place| !place.changes())
}

fn fill(
    engine: &mut Stepper,
    prepared: &Prepared,
    seed: u64,
    wanted: impl Fn(&ParamPlace) -> bool,
) -> Result<(), Fail> {
    for index in 0..engine.program().store.params.len() {
        let place = &engine.program().store.params[index];
        if !wanted(place) {
            continue;
        }
        let (param, adapter) = (place.param.clone(), place.adapter);
        // LoRA's factors are in no file of the base.
        let files = prepared.weights.as_ref().filter(|_| !adapter);
        let factor = if adapter { 1.0 } else { prepared.folder.init_factor() };
        let read = |first: usize, out: &mut [f32]| -> Result<(), ModelError> {
            match files {
                Some(files) => files.fill_part(&param.name, first, out),
                None => {
                    out.par_chunks_mut(CHUNK).enumerate().for_each(|(nth, part)| {
                        fill_random_part(&param, factor, seed, first + nth * CHUNK, part);
                    });
                    Ok(())
                }
            }
        };
        engine.fill_param(index, read)?.or_usage()?;
    }
    Ok(())
}
