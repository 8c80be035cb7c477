//! `muster generate`: text by a model at hand, or by one that others hold.

use std::io::{BufRead, IsTerminal, stdin};
use std::time::Duration;

use muster_compute::Machine;
use muster_core::manifest::Manifest;
use muster_organise::ask::Caller;
use muster_organise::checkpoint::Checkpoint;
use muster_organise::generate::{Sampling, Words, Writer, Written, read_of};
use muster_replica::exit::{Exit, Failure, Outcome};
use muster_view::chat;

use super::arguments::GenerateArguments;
use super::output::{say, show};
use super::runtime::runtime;

/// What gives the logits of the token that follows a text.
type After<'a> = dyn FnMut(&[u32]) -> Outcome<Vec<f32>> + 'a;

pub(super) fn generate_text(arguments: &GenerateArguments) -> Outcome<Exit> {
    if arguments.ask.is_some() {
        return ask_for_text(arguments);
    }
    let GenerateArguments { folder, round, compute, device, prompt, tokenizer, .. } = arguments;
    let device = device.unwrap_or_default();
    let machine = Machine { threads: compute.threads.into(), path: compute.kernel, library: None, device };
    let mut reading = machine.reading()?;
    let checkpoint = Checkpoint::open(folder, *round, reading.exact())?;
    let manifest = &checkpoint.manifest;
    let words = Words::of(manifest, folder, tokenizer.as_deref())?;
    let row = checkpoint.best_row(&words.prompt(prompt)?)?;
    let parameters = checkpoint.path(row)?;
    match (checkpoint.rows_of_run(), checkpoint.rows().len()) {
        (1, _) => {}
        (all, 1) => eprintln!("reading with row {row}, the only one of {all} that is here"),
        (all, _) => eprintln!("reading with row {row} of {all}, which suits the prompt best"),
    }
    tracing::debug!("the model is read by {}", reading.describe());
    let mut reader = reading.with(manifest, &parameters);
    write_text(arguments, manifest, &words, &mut |text| Ok(reader.after(read_of(manifest, text))))
}

/// As [`generate_text`], by a model that others hold.
fn ask_for_text(arguments: &GenerateArguments) -> Outcome<Exit> {
    let GenerateArguments { folder, ask, grace, .. } = arguments;
    let runtime = runtime()?;
    let grace = Duration::from_secs_f32(*grace);
    let mut tell = |line: &str| eprintln!("{line}");
    let rows = ask.unwrap_or(1).into();
    let mut caller = runtime.block_on(Caller::open(folder, rows, grace, &mut tell))?;
    let manifest = caller.manifest().clone();
    let words = Words::of(&manifest, folder, arguments.tokenizer.as_deref())?;
    let done = write_text(arguments, &manifest, &words, &mut |text| runtime.block_on(caller.after(text)));
    drop(caller);
    runtime.shutdown_background();
    done
}

/// Continues the prompt, and with `--chat` each line after it.
fn write_text(
    arguments: &GenerateArguments,
    manifest: &Manifest,
    words: &Words,
    after: &mut After<'_>,
) -> Outcome<Exit> {
    let GenerateArguments { prompt, tokens, temperature, top, seed, chat, web, .. } = arguments;
    let sampling = Sampling { temperature: *temperature, top: *top, seed: *seed };
    if let Some(address) = web {
        return answer_questions(arguments, address, &Teller { manifest, words, sampling }, after);
    }
    let mut writer = Writer::new(manifest, words, sampling)?;
    if *chat {
        writer.read(prompt)?;
        return talk(&mut writer, *tokens, after, &mut stdin().lock());
    }
    show(prompt)?;
    writer.read(prompt)?;
    writer.write(*tokens, after, &mut piece)?;
    say("")?;
    Ok(Exit::Good)
}

/// Shows a piece of text; whether somebody still reads.
fn piece(text: &str) -> bool {
    show(text).unwrap_or(false)
}

/// What texts are written with.
struct Teller<'a> {
    manifest: &'a Manifest,
    words: &'a Words,
    sampling: Sampling,
}

/// Serves a page to talk to the model, and answers one question after the other.
fn answer_questions(
    arguments: &GenerateArguments,
    address: &str,
    teller: &Teller<'_>,
    after: &mut After<'_>,
) -> Outcome<Exit> {
    let Teller { manifest, words, sampling } = *teller;
    // Before the page is there: a model that writes nothing has none.
    Writer::new(manifest, words, sampling)?;
    let runtime = runtime()?;
    let opened = runtime.block_on(chat::open(address, &manifest.name, &arguments.prompt));
    let (pages, mut questions) = opened.map_err(Failure::environment)?;
    say(&format!("talk to the model: {}", pages.url))?;
    let mut asked = 0;
    while let Some(question) = questions.blocking_recv() {
        if !question.is_waited_for() {
            continue;
        }
        // The same question again gets another answer.
        let sampling = Sampling { seed: sampling.seed.wrapping_add(asked), ..sampling };
        asked += 1;
        let mut writer = Writer::new(manifest, words, sampling)?;
        let written = writer
            .read(&question.prompt)
            .and_then(|()| writer.write(arguments.tokens, after, &mut |piece| question.say(piece)));
        match written {
            Ok(written) => question.end(written == Written::Whole),
            Err(failure) => question.fail(failure.message),
        }
    }
    Ok(Exit::Good)
}

/// Puts each line behind the text so far, and lets the model go on from there. The line after a text that has ended begins a new one.
fn talk(
    writer: &mut Writer<'_>,
    tokens: usize,
    after: &mut After<'_>,
    lines: &mut dyn BufRead,
) -> Outcome<Exit> {
    let drawn = stdin().is_terminal();
    if drawn {
        eprintln!("write a line, and the model goes on; an empty line lets it go on once more; Ctrl-D ends");
    }
    loop {
        if drawn {
            show("> ")?;
        }
        let mut line = String::new();
        let read = lines.read_line(&mut line);
        let read =
            read.map_err(|error| Failure::environment(format!("the next line cannot be read: {error}")))?;
        if read == 0 {
            say("")?;
            return Ok(Exit::Good);
        }
        writer.read_line(line.trim_end_matches(['\n', '\r']))?;
        match writer.write(tokens, after, &mut piece)? {
            Written::Unread => return Ok(Exit::Good),
            Written::Whole if drawn => say("\n(the text ends here)")?,
            Written::Whole | Written::Full => say("")?,
        }
    }
}
