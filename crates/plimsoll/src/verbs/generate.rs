//! `plimsoll generate`: try the model, prompt by prompt or in a conversation.

use std::io::{BufRead, IsTerminal};

use plimsoll_data::{ChatTemplate, Kind, Long, Message};
use plimsoll_engine::{GenerateOptions, Sampling};
use plimsoll_plan::generation::GenerateShape;
use plimsoll_plan::spec::ModelSpec;
use serde::Serialize;

use crate::args::GenerateArgs;
use crate::inference::{self, Opened};
use crate::prepare::samples::recipe_for;
use crate::render::{self, Fail, OrFail};

/// Longest prompt that is looked at, in tokens: T5's, and a decoder's where it has room for more.
const MAX_SOURCE: usize = 512;
const MAX_CONTEXT: usize = 2048;
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
    judge(args)?;
    let opened = inference::open(&args.from, args.base.as_deref())?;
    opened.tokenizer()?;
    let template = template(args, &opened)?;
    if args.chat {
        return converse(args, &opened, template.as_deref());
    }
    let prompts = prompts(args)?;
    let mut tokens = Vec::with_capacity(prompts.len());
    for (nth, prompt) in prompts.iter().enumerate() {
        let turns = [system(args), vec![Message::new("user", prompt)]].concat();
        let (ids, cut) = encode(&opened, template.as_deref(), &turns, args.max_new as usize)?;
        if cut {
            render::talk(format!("warning: prompt {} is longer than {} tokens and was cut", nth + 1, ids.len()));
        }
        tokens.push(ids);
    }
    let Some(source_len) = tokens.iter().map(Vec::len).max() else { return Ok(()) };
    let (beams, max_new) = (args.beams as usize, args.max_new as usize);
    let shape = GenerateShape { prompts: PROMPTS.min(prompts.len()), beams, source_len, max_new };
    let program = opened.program(None, Some(shape))?;
    let answers = opened.with_engine(program, |engine| Ok(engine.generate(&tokens, &options(args))?))?;
    for (prompt, ids) in prompts.iter().zip(&answers) {
        let answer = opened.tokenizer()?.decode(ids)?;
        if args.json {
            let line = serde_json::to_string(&Answer { prompt, answer, tokens: ids.len() }).or_failed()?;
            render::data(line)?;
        } else {
            render::data(answer)?;
        }
    }
    Ok(())
}

fn judge(args: &GenerateArgs) -> Result<(), Fail> {
    if let Some(t) = args.temperature.filter(|t| !(t.is_finite() && *t > 0.0)) {
        return Err(Fail::usage(format!("`--temperature` must be above 0, found `{t}`")));
    }
    if !(0.0 < args.top_p && args.top_p <= 1.0) {
        return Err(Fail::usage(format!("`--top-p` must be above 0 and at most 1, found `{}`", args.top_p)));
    }
    Ok(())
}

fn options(args: &GenerateArgs) -> GenerateOptions {
    let GenerateArgs { top_k, top_p, seed, .. } = *args;
    let sampling = args.temperature.map(|temperature| Sampling { temperature, top_k, top_p, seed });
    GenerateOptions { sampling, ..GenerateOptions::beam(args.beams as usize, args.max_new as usize) }
}

/// The chat template, where the model is a decoder that has one and prompts are not to be taken as they are.
fn template(args: &GenerateArgs, opened: &Opened) -> Result<Option<std::sync::Arc<ChatTemplate>>, Fail> {
    let decoder = matches!(opened.folder.spec(), ModelSpec::Decoder(_));
    if args.chat && !decoder {
        return Err(Fail::usage("`--chat` is for decoder models, and this is a T5"));
    }
    let has_one = decoder && opened.folder.chat_template().or_usage()?.is_some();
    if args.raw || !(has_one || args.chat || args.system.is_some()) {
        return Ok(None);
    }
    let recipe = recipe_for(Kind::Chat, Long::Cut, &opened.folder, opened.tokenizer()?)?;
    Ok(recipe.template().cloned())
}

fn system(args: &GenerateArgs) -> Vec<Message> {
    args.system.iter().map(|text| Message::new("system", text)).collect()
}

/// The tokens of a prompt, and whether something of it was cut: T5 reads its beginning, a decoder its end.
fn encode(
    opened: &Opened,
    template: Option<&ChatTemplate>,
    turns: &[Message],
    max_new: usize,
) -> Result<(Vec<u32>, bool), Fail> {
    let mut ids = Vec::new();
    let last = turns.last().map_or("", |turn| turn.content.as_str());
    let ModelSpec::Decoder(spec) = opened.folder.spec() else {
        let cut = opened.tokenizer()?.encode(last, MAX_SOURCE, &mut ids).or_usage()?;
        return Ok((ids, cut));
    };
    if max_new >= spec.max_positions {
        let fact = format!("`--max-new` is {max_new}, and the model has {} positions", spec.max_positions);
        return Err(Fail::usage(fact));
    }
    let most = (spec.max_positions - max_new).min(MAX_CONTEXT);
    let cut = match template {
        Some(template) => {
            let text = template.render(turns, true).or_usage()?;
            opened.tokenizer()?.encode_prompt(&text, most, &mut ids).or_usage()?
        }
        None => {
            let cut = opened.tokenizer()?.encode_prompt(last, most, &mut ids).or_usage()?;
            if let Some(bos) = spec.bos_id.filter(|bos| ids.first() != Some(bos) && ids.len() < most) {
                ids.insert(0, bos);
            }
            cut
        }
    };
    if ids.is_empty() {
        return Err(Fail::usage("the prompt has no tokens"));
    }
    Ok((ids, cut))
}

/// Turn by turn, each with all that was said before.
fn converse(args: &GenerateArgs, opened: &Opened, template: Option<&ChatTemplate>) -> Result<(), Fail> {
    let stdin = std::io::stdin();
    if stdin.is_terminal() {
        render::talk("one turn a line; end with Ctrl-D");
    }
    let ModelSpec::Decoder(spec) = opened.folder.spec() else { return Ok(()) };
    let max_new = args.max_new as usize;
    let source_len = spec.max_positions.saturating_sub(max_new).clamp(1, MAX_CONTEXT);
    let shape = GenerateShape { prompts: 1, beams: args.beams as usize, source_len, max_new };
    let program = opened.program(None, Some(shape))?;
    opened.with_engine(program, |engine| {
        let mut turns = system(args);
        for line in stdin.lock().lines() {
            let line = line?;
            if line.trim().is_empty() {
                continue;
            }
            turns.push(Message::new("user", &line));
            let (ids, cut) = encode(opened, template, &turns, max_new)?;
            if cut {
                render::talk("the conversation is longer than the model reads: its beginning is left out");
            }
            let answer = engine.generate(&[ids], &options(args))?.pop().unwrap_or_default();
            let answer = opened.tokenizer()?.decode(&answer)?;
            render::data(&answer)?;
            turns.push(Message::new("assistant", answer.trim()));
        }
        Ok(())
    })
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
