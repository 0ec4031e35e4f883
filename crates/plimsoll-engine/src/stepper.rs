//! An engine wherever it runs: what a training run asks of the CPU's and of a card's alike.

use plimsoll_plan::batch::BatchSlot;
use plimsoll_plan::dtype::Dtype;
use plimsoll_plan::program::Program;
use plimsoll_plan::series_batch::SeriesSlot;

use crate::cuda::{CudaEngine, CudaOptions, LossScale};
use crate::engine::{Engine, SeriesHead, Updates};
use crate::error::EngineError;
use crate::generate::GenerateOptions;
use crate::snapshot::Snapshot;
use crate::step::{Loss, MicroStep, Updated};

/// An engine on the CPU or on a card, as its program was planned.
#[derive(Debug)]
pub enum Stepper {
    /// On the machine's own cores.
    Cpu(Box<Engine>),
    /// On a card.
    Card(Box<CudaEngine>),
}

impl Stepper {
    /// Starts the engine that the program was planned for.
    pub fn start(program: Program, updates: Option<Updates>, card: &CudaOptions) -> Result<Stepper, EngineError> {
        match program.device.cuda() {
            None => Ok(Stepper::Cpu(Box::new(Engine::start(program, updates)?))),
            Some(_) => Ok(Stepper::Card(Box::new(CudaEngine::start(program, updates, card)?))),
        }
    }

    /// The program.
    pub fn program(&self) -> &Program {
        match self {
            Stepper::Cpu(engine) => engine.program(),
            Stepper::Card(engine) => engine.program(),
        }
    }

    /// The engine of the CPU, whose tensors can be looked at in place.
    pub fn cpu(&self) -> Option<&Engine> {
        match self {
            Stepper::Cpu(engine) => Some(engine),
            Stepper::Card(_) => None,
        }
    }

    /// How a parameter is stored.
    pub fn dtype(&self, index: usize) -> Dtype {
        self.program().store.dtype(self.program().store.params[index].weight)
    }

    /// Fills a parameter from `read(first element, numbers)`. The inner result is the reader's.
    pub fn fill_param<E>(
        &mut self,
        index: usize,
        read: impl FnMut(usize, &mut [f32]) -> Result<(), E>,
    ) -> Result<Result<(), E>, EngineError> {
        match self {
            Stepper::Cpu(engine) => Ok(engine.fill_param(index, read)),
            Stepper::Card(engine) => engine.fill_param(index, read),
        }
    }

    /// Elements of a parameter from `first` on, widened.
    pub fn read_param(&self, index: usize, first: usize, out: &mut [f32]) -> Result<(), EngineError> {
        match self {
            Stepper::Cpu(engine) => engine.read_param(index, first, out),
            Stepper::Card(engine) => engine.read_param(index, first, out)?,
        }
        Ok(())
    }

    /// Fills optimizer state `nth` of a parameter from `read(first word, words)`. The inner result is the reader's.
    pub fn fill_state<E>(
        &mut self,
        index: usize,
        nth: usize,
        mut read: impl FnMut(usize, &mut [f32]) -> Result<(), E>,
    ) -> Result<Result<(), E>, EngineError> {
        match self {
            Stepper::Cpu(engine) => Ok(read(0, engine.state_mut(index, nth))),
            Stepper::Card(engine) => engine.fill_state(index, nth, read),
        }
    }

    /// Whether every trained weight is a finite number.
    pub fn weights_are_finite(&self) -> Result<bool, EngineError> {
        match self {
            Stepper::Cpu(engine) => Ok(engine.weights_are_finite()),
            Stepper::Card(engine) => engine.weights_are_finite(),
        }
    }

    /// Copies everything that a checkpoint holds.
    pub fn copy_to(&self, snapshot: &mut Snapshot) -> Result<(), EngineError> {
        match self {
            Stepper::Cpu(engine) => snapshot.fill(engine),
            Stepper::Card(engine) => snapshot.fill_from_card(engine)?,
        }
        Ok(())
    }

    /// Lends the batch to the loader.
    pub fn slot(&mut self) -> BatchSlot<'_> {
        match self {
            Stepper::Cpu(engine) => engine.slot(),
            Stepper::Card(engine) => engine.slot(),
        }
    }

    /// Lends the batch of a model of series to the loader.
    pub fn series_slot(&mut self) -> Result<SeriesSlot<'_>, EngineError> {
        match self {
            Stepper::Cpu(engine) => engine.series_slot(),
            Stepper::Card(engine) => engine.series_slot(),
        }
    }

    /// Answers of a head to the batch that was evaluated last, into `out`: as many as it has room for.
    pub fn read_answers(&self, of: SeriesHead, out: &mut [f32]) -> Result<(), EngineError> {
        let none = EngineError::NotPlanned { what: "such a head" };
        match self {
            Stepper::Cpu(engine) => {
                let answers = engine.answers(of).filter(|answers| answers.len() >= out.len()).ok_or(none)?;
                out.copy_from_slice(&answers[..out.len()]);
                Ok(())
            }
            Stepper::Card(engine) => engine.read_answers(of, out),
        }
    }

    /// Forward and backward of the batch in the slot; on a card they may still be under way.
    pub fn micro_step(&mut self, step: MicroStep) -> Result<(), EngineError> {
        match self {
            Stepper::Cpu(engine) => engine.micro_step(step).map(drop),
            Stepper::Card(engine) => engine.micro_step(step),
        }
    }

    /// Ends an update. While a card is at it, `meanwhile` is called, which may fill its slot, and begin the next update where
    /// [`CudaEngine::may_run_ahead`]; a CPU has no time to spare.
    pub fn finish_update(
        &mut self,
        step: MicroStep,
        meanwhile: impl FnOnce(&mut CudaEngine),
    ) -> Result<Updated, EngineError> {
        match self {
            Stepper::Cpu(engine) => engine.finish_update(step),
            Stepper::Card(engine) => {
                engine.end_update(step)?;
                meanwhile(engine);
                engine.collect()
            }
        }
    }

    /// The engine on a card, where it is one.
    pub fn card(&self) -> Option<&CudaEngine> {
        match self {
            Stepper::Cpu(_) => None,
            Stepper::Card(engine) => Some(engine),
        }
    }

    /// The loss scale of the next update, and since how many it holds; none where nothing is scaled.
    pub fn loss_scale(&self) -> Option<LossScale> {
        match self {
            Stepper::Cpu(_) => None,
            Stepper::Card(engine) => engine.loss_scale(),
        }
    }

    /// Sets the loss scale, where there is one.
    pub fn set_loss_scale(&mut self, scale: LossScale) {
        if let Stepper::Card(engine) = self {
            engine.set_loss_scale(scale);
        }
    }

    /// The loss of the batch in the slot.
    pub fn eval(&mut self, samples: usize) -> Result<Loss, EngineError> {
        match self {
            Stepper::Cpu(engine) => engine.eval(samples),
            Stepper::Card(engine) => engine.eval(samples),
        }
    }

    /// Answers to prompts; on the CPU alone.
    pub fn generate(&mut self, prompts: &[Vec<u32>], options: &GenerateOptions) -> Result<Vec<Vec<u32>>, EngineError> {
        match self {
            Stepper::Cpu(engine) => engine.generate(prompts, options),
            Stepper::Card(_) => Err(EngineError::NotPlanned { what: "generation on a card" }),
        }
    }
}
