//! The start of an engine: everything is rehearsed before the arena is taken. All kernels are loaded and all products looked
//! up, so the memory that this costs is known, and nothing is left to be taken in the middle of a step.

use std::path::PathBuf;

use plimsoll_plan::device::{CudaForm, captured_ops};
use plimsoll_plan::program::Program;
use plimsoll_plan::train::OptimizerSpec;

use super::card::{Address, Card, DeviceArena};
use super::engine::{ALL, CudaEngine, Way, most_documents, most_rows, tape_of};
use super::error::CudaError;
use super::execute::{Machine, Run};
use super::graph::Graphs;
use super::hold::Hold;
use super::kernels::Kernels;
use super::lt::Products;
use super::scale::LossScale;
use super::staged::{Layout, Staged};
use super::tables::{Addresses, Tables};
use super::tuned::Tuned;
use crate::engine::Updates;
use crate::error::EngineError;
use crate::step::Open;

/// How the card is used.
#[derive(Clone, Debug, Default)]
pub struct CudaOptions {
    /// Which card.
    pub index: usize,
    /// Folder for compiled kernels.
    pub cache: Option<PathBuf>,
    /// Products of f32 may round their operands to TF32.
    pub tf32: bool,
    /// Steps are launched op by op instead of captured as graphs.
    pub eager: bool,
    /// An LSTM takes two launches a step, as on cards that are too small to walk it in one: for tests and benchmarks.
    pub stepwise: bool,
}

/// Memory of the card, measured while the engine started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CardUse {
    /// In use once the context was there, by us or anybody else.
    pub context: u64,
    /// What kernels and libraries added.
    pub modules: u64,
    /// The arena.
    pub arena: u64,
    /// In use once everything was taken.
    pub all: u64,
}

/// An address that only stands for one while nothing is there yet; aligned as the arena will be.
const NOWHERE: Address = 1 << 40;

/// A byte that repeated is 0.011 in f32 and bf16, and 1.06 in f16.
const SOMETHING: u8 = 0x3c;

impl CudaEngine {
    /// Opens the card, rehearses the program, takes its memory, whole.
    pub fn start(program: Program, updates: Option<Updates>, options: &CudaOptions) -> Result<CudaEngine, EngineError> {
        let form = *program.device.cuda().ok_or(EngineError::NotPlanned { what: "a card" })?;
        let card = Card::open(options.index)?;
        let context = card.total() - card.free()?;
        let mut products = Products::open(options.tf32)?;
        products.lend(NOWHERE, form.products);
        let kernels = Kernels::new(&card, options.cache.clone());
        let mut machine = Machine { products, kernels, card };
        let optimizer = updates.as_ref().map(|updates| &updates.optimizer);
        rehearse(&mut machine, &program, form, optimizer, (NOWHERE, options.stepwise))?;
        machine.card.wait()?;
        let modules = (machine.card.total() - machine.card.free()?).saturating_sub(context);
        let arena = DeviceArena::take(&machine.card, program.parts.words() * 4)?;
        let parts = program.parts;
        let base = arena.base();
        machine.products.lend(base + 4 * (parts.store + parts.transient) as u64, form.products);
        tune(&mut machine, &program, form, optimizer, &arena, options)?;
        let staging = base + 4 * (parts.store + parts.transient + parts.workspace) as u64;
        let staged = Staged::take(&program, staging)?;
        let mut tables = Tables::at(staging + 4 * parts.staging as u64);
        let lists = ALL.map(|which| match tape_of(&program, which) {
            Some(placed) => tables.add(Addresses { program: &program, placed, base }),
            None => Vec::new(),
        });
        assert_eq!(tables.words.len(), parts.tables, "the tables are what the plan says");
        machine.card.write(tables.maps, &tables.words)?;
        let all = machine.card.total() - machine.card.free()?;
        let used = CardUse { context, modules, arena: arena.bytes() as u64, all };
        Ok(CudaEngine {
            graphs: Graphs::of_at_most(captured_ops(&program)),
            staged,
            arena,
            machine,
            program,
            form,
            tables: lists,
            maps: tables.maps,
            updates,
            open: Open::default(),
            scale: LossScale::of(form.activations),
            ways: [Way::new()?, Way::new()?],
            turn: 0,
            busy_seconds: 0.0,
            eager: options.eager,
            stepwise: options.stepwise,
            used,
        })
    }
}

impl Hold {
    /// Rehearses a program that may come of the plan: its kernels are compiled and loaded, its products looked up, and all of it is let go
    /// again. What that takes of RAM, which is most where kernels are compiled for the first time, can be measured then.
    pub fn rehearse(
        &self,
        program: &Program,
        optimizer: &OptimizerSpec,
        cache: Option<PathBuf>,
    ) -> Result<(), EngineError> {
        let form = *program.device.cuda().ok_or(EngineError::NotPlanned { what: "a card" })?;
        let card = Card::open(self.index())?;
        let mut products = Products::open(false)?;
        products.lend(NOWHERE, form.products);
        let kernels = Kernels::new(&card, cache);
        let mut machine = Machine { products, kernels, card };
        rehearse(&mut machine, program, form, Some(optimizer), (NOWHERE, false))?;
        Ok(machine.card.wait()?)
    }
}

/// Runs every tape without launching anything.
fn rehearse(
    machine: &mut Machine,
    program: &Program,
    form: CudaForm,
    optimizer: Option<&OptimizerSpec>,
    (base, stepwise): (Address, bool),
) -> Result<(), CudaError> {
    for which in ALL {
        let Some(placed) = tape_of(program, which) else { continue };
        let mut tables = Tables::at(base);
        let list = tables.add(Addresses { program, placed, base });
        let parts = program.shape.samples.div_ceil(program.part_samples.max(1));
        let rows = vec![most_rows(program, placed); parts];
        for first_micro in [true, false] {
            let mut run = Run {
                machine,
                program,
                placed,
                tables: &list,
                maps: base,
                layout: Layout::of(program, base),
                base,
                form,
                optimizer,
                rows: &rows,
                documents: most_documents(program),
                part: 0,
                first_micro,
                exact: false,
                stepwise,
                rehearsal: true,
            };
            run.run()?;
        }
    }
    Ok(())
}

/// Finds the fastest algorithms of the program's products, in the arena before anything is in it.
fn tune(
    machine: &mut Machine,
    program: &Program,
    form: CudaForm,
    optimizer: Option<&OptimizerSpec>,
    arena: &DeviceArena,
    options: &CudaOptions,
) -> Result<(), CudaError> {
    let mut tuned = Tuned::read(options.cache.as_deref());
    if !tuned.keeps() {
        return Ok(());
    }
    rehearse(machine, program, form, optimizer, (arena.base(), options.stepwise))?;
    let Machine { products, card, .. } = machine;
    // Products of zeros are faster than they will be. These bytes are a small number in every form.
    card.fill(arena.base(), arena.bytes(), SOMETHING)?;
    let of = format!("{},{},{}", card.name().replace(char::is_whitespace, "_"), card.arch(), card.driver());
    products.tune(card, &mut tuned, &of)?;
    card.zero(arena.base(), arena.bytes())?;
    card.wait()
}
