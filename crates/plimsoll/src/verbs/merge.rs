//! `plimsoll merge`: an adapter folded into its base, as a whole model folder.

use plimsoll_model::{AdapterFolder, Existing, ModelFolder, merge};
use plimsoll_plan::dtype::Dtype;

use crate::args::MergeArgs;
use crate::inference::{Found, find};
use crate::render::{self, Fail, OrFail};

/// Merges and says where the model is.
pub fn run(args: &MergeArgs) -> Result<(), Fail> {
    let Found { model, adapter } = find(&args.from, args.base.as_deref())?;
    let Some(dir) = adapter else {
        let fact = format!("`{}` holds no adapter: its model is whole already", args.from.display());
        return Err(Fail::usage(fact).hint(format!("it is in {}", model.display())));
    };
    let (folder, weights) = ModelFolder::open_with_weights(&model).or_usage()?;
    let adapter = AdapterFolder::open(&dir).or_usage()?;
    let dtype = match args.dtype.as_deref() {
        None => weights.float_dtype().filter(|dtype| *dtype == Dtype::Bf16).unwrap_or(Dtype::F32),
        Some("f32") => Dtype::F32,
        Some("bf16") => Dtype::Bf16,
        Some(other) => return Err(Fail::usage(format!("`--dtype` must be `f32` or `bf16`, found `{other}`"))),
    };
    merge(&folder, &weights, &adapter, &args.out, dtype, Existing::Refuse).or_usage()?;
    render::talk(format!("model: {}", args.out.display()));
    Ok(())
}
