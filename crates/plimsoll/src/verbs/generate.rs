//! `plimsoll generate`: try the model.

use std::io::{BufRead, IsTerminal};

use plimsoll_engine::GenerateOptions;
use plimsoll_plan::t5::GenerateShape;
use serde::Serialize;

use crate::args::GenerateArgs;
use crate::inference;
use crate::render::{self, Fail, OrFail};

/// Longest prompt that is looked at, in tokens.
const MAX_SOURCE: usize = 512;
/// Prompts worked on at a time.
const PROMPTS: usize = 8;

#[derive(Serialize)]
struct Answer<'a> {
    prompt: &'a str,
    answer: String,
    tokens: usize,
}

/// Answers every prompt.
pub fn run(args: &GenerateArgs) -> Result<(), Fail> {
    let opened = inference::open(&args.from)?;
    let prompts = prompts(args)?;
    let mut tokens = Vec::with_capacity(prompts.len());
    for (nth, prompt) in prompts.iter().enumerate() {
        let mut ids = Vec::new();
        if opened.tokenizer.encode(prompt, MAX_SOURCE, &mut ids).or_usage()? {
            render::talk(format!("warning: prompt {} is longer than {MAX_SOURCE} tokens and was cut", nth + 1));
        }
        tokens.push(ids);
    }
    let Some(source_len) = tokens.iter().map(Vec::len).max() else { return Ok(()) };
    let (beams, max_new) = (args.beams as usize, args.max_new as usize);
    let shape = GenerateShape { prompts: PROMPTS.min(prompts.len()), beams, source_len, max_new };
    let program = opened.program(None, Some(shape))?;
    let options = GenerateOptions { beams, max_new, length_penalty: 1.0, early_stopping: false };
    let answers = opened.with_engine(program, |engine| Ok(engine.generate(&tokens, &options)?))?;
    for (prompt, ids) in prompts.iter().zip(&answers) {
        let answer = opened.tokenizer.decode(ids)?;
        if args.json {
            let line = serde_json::to_string(&Answer { prompt, answer, tokens: ids.len() }).or_failed()?;
            render::data(line)?;
        } else {
            render::data(answer)?;
        }
    }
    Ok(())
}

/// Given as flags, or one a line on standard input.
fn prompts(args: &GenerateArgs) -> Result<Vec<String>, Fail> {
    if !args.prompt.is_empty() {
        return Ok(args.prompt.clone());
    }
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        render::talk("one prompt a line; end with Ctrl-D");
    }
    let lines: Result<Vec<String>, _> = stdin.lock().lines().collect();
    Ok(lines?.into_iter().filter(|l| !l.trim().is_empty()).collect())
}
