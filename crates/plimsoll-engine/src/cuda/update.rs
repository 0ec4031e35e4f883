//! The norm of all gradients, and the updates of many parameters in one launch.

use plimsoll_plan::device::SQUARES_CHUNK;
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::op::Op;
use plimsoll_plan::place::aligned;
use plimsoll_plan::tape::Id;
use plimsoll_plan::train::OptimizerSpec;

use super::call::Call;
use super::card::Address;
use super::error::CudaError;
use super::execute::{BLOCK, Run};
use super::kernels::Kernel;
use super::lt::Number;
use super::tables::{Group, Table};

impl Run<'_> {
    pub(super) fn gradient_norm(&mut self, index: usize, gradients: &[Id]) -> Result<(), CudaError> {
        let partial = self.scratch();
        if let Some(Group { params, count, blocks: [(first, blocks), ..] }) = self.updated_next(index, gradients) {
            let call = Call::new().at(params).at(first).u32(count).at(partial);
            self.launch(self.kernel("gradient_norm", "gradient_norm_params"), (blocks, 1), BLOCK, 0, call)?;
            return self.finish_norm(partial, blocks);
        }
        let mut chunks = 0;
        for (at, count) in self.stretches(gradients) {
            let call = Call::new().at(at).with(count as u64).at(partial + 8 * chunks as u64);
            let blocks = count.div_ceil(SQUARES_CHUNK);
            self.launch(self.kernel("gradient_norm", "gradient_norm_partial"), (blocks, 1), BLOCK, 0, call)?;
            chunks += blocks;
        }
        self.finish_norm(partial, chunks)
    }

    fn finish_norm(&mut self, partial: Address, chunks: usize) -> Result<(), CudaError> {
        let call = Call::new().at(partial).u32(chunks).at(self.step());
        self.launch(self.kernel("gradient_norm", "gradient_norm_finish"), (1, 1), 1024, 0, call)
    }

    /// The updates behind an op, where they are of these gradients and no others: their table names all of them.
    fn updated_next(&self, index: usize, gradients: &[Id]) -> Option<Group> {
        let Some(Table::Group(group)) = self.tables.get(index + 1) else { return None };
        let mut of: Vec<Id> = self.placed.tape.ops[index + 1..]
            .iter()
            .map_while(|op| if let Op::Update { grad, .. } = op { Some(*grad) } else { None })
            .collect();
        of.dedup();
        (of == gradients).then_some(*group)
    }

    /// Tensors that lie behind each other as one stretch; what alignment leaves between them is zero and stays so.
    fn stretches(&self, tensors: &[Id]) -> Vec<(Address, usize)> {
        let mut list: Vec<(Address, usize)> = Vec::new();
        for id in tensors {
            let (at, count) = (self.at(*id), self.words(*id));
            // Only what outlives tapes has a place of its own, and so zeros behind it.
            let own = self.placed.tape.own(*id).is_some();
            match list.last_mut().filter(|(first, n)| !own && first + 4 * aligned(*n) as u64 == at) {
                Some((first, n)) => *n = ((at - *first) / 4) as usize + count,
                None => list.push((at, count)),
            }
        }
        list
    }

    /// Number type of weights as updates write them.
    fn update_number(&self) -> Number {
        let store = &self.program.store;
        let trained = store.params.iter().filter(|place| place.trained);
        let half = trained.map(|place| store.dtype(place.weight)).find(|dtype| *dtype != Dtype::F32);
        half.map_or(self.act(), Number::of)
    }

    pub(super) fn update(&mut self, group: Group) -> Result<(), CudaError> {
        let Some(optimizer) = self.optimizer else {
            return Err(CudaError::Unsupported { op: "an update without an optimizer" });
        };
        let (step, wgt) = (self.step(), self.update_number());
        let Group { params, count, blocks } = group;
        let by_block = |which: usize| Call::new().at(params).at(blocks[which].0).u32(count);
        let all = Call::new().at(params).u32(count).at(step);
        let kernel = |run: &Self, file, name| Kernel { wgt, ..run.kernel(file, name) };
        let grid = |which: usize| (blocks[which].1, 1);
        match optimizer {
            OptimizerSpec::AdamW { .. } => {
                self.launch(kernel(self, "adamw", "adamw"), grid(0), BLOCK, 0, by_block(0).at(step))
            }
            OptimizerSpec::AdamW16bit { .. } => {
                self.launch(kernel(self, "adamw16bit", "adamw"), grid(0), BLOCK, 0, by_block(0).at(step))
            }
            OptimizerSpec::AdamW8bit { .. } => {
                let call = by_block(0).at(self.maps).at(step);
                self.launch(kernel(self, "adamw8bit", "adamw8bit"), grid(0), BLOCK, 0, call)
            }
            OptimizerSpec::Lion { .. } => {
                self.launch(kernel(self, "lion", "lion"), grid(0), BLOCK, 0, by_block(0).at(step))
            }
            OptimizerSpec::Sgd { .. } => {
                self.launch(kernel(self, "sgd", "sgd"), grid(0), BLOCK, 0, by_block(0).at(step))
            }
            OptimizerSpec::Adafactor { .. } => {
                let of = |run: &Self, name| kernel(run, "adafactor", name);
                self.launch(of(self, "adafactor_rows"), grid(1), BLOCK, 0, by_block(1).at(step))?;
                if blocks[2].1 > 0 {
                    self.launch(of(self, "adafactor_columns"), grid(2), BLOCK, 0, by_block(2).at(step))?;
                }
                self.launch(of(self, "adafactor_factors"), (count, 1), 1024, 0, all)?;
                self.launch(of(self, "adafactor_size"), grid(1), BLOCK, 0, by_block(1).at(step))?;
                let all = Call::new().at(params).u32(count).at(step);
                self.launch(of(self, "adafactor_numbers"), (count, 1), 1024, 0, all)?;
                self.launch(of(self, "adafactor_apply"), grid(0), BLOCK, 0, by_block(0).at(step))
            }
        }
    }
}
