//! Exports a model and answers with its logits, for `transformers_check.py`: each line of the input is a window of
//! tokens, each line of the output what the model reads of it and says about it, in JSON.
//!
//! `bench-logits SETTINGS FOLDER`: the model that a run with these settings begins with, its gains and biases moved
//! away from 1 and 0, goes into the new folder as `muster run export` writes it; a decoder whose positions are not scaled
//! also as `model.gguf`.

use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use muster_compute::Exact;
use muster_core::assign::{calibration_seed, masked};
use muster_core::hash::{Domain, Hasher};
use muster_core::ids::{Digest, Leaf, MemberId, Round};
use muster_core::layout::Layout;
use muster_core::manifest::{Data, Family, Manifest, Start, Tokeniser, Variant};
use muster_core::state::{Arithmetic, State};
use muster_organise::checkpoint::Checkpoint;
use muster_organise::config::{Makers, Settings};
use muster_organise::export::export;
use muster_organise::gguf::export_gguf;
use serde_json::{Value, json};

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => tell(&error),
    }
}

#[allow(clippy::print_stderr)]
fn tell(error: &Failure) -> ExitCode {
    eprintln!("{error}");
    ExitCode::FAILURE
}

#[allow(clippy::print_stdout)]
fn serve() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1).map(PathBuf::from);
    let (Some(settings), Some(folder)) = (arguments.next(), arguments.next()) else {
        return Err("usage: bench-logits SETTINGS FOLDER".into());
    };
    let mut exact = Exact::new(1, None)?;
    let manifest = manifest(&settings)?;
    let parameters = parameters(&mut exact, &manifest);
    let state = State::initial(&Layout::of_run(&manifest), parameters);
    let checkpoint = Checkpoint { manifest, round: Round(0), state, folder: PathBuf::new() };
    export(&checkpoint, None, &folder)?;
    // For other families the format has no architecture. `transformers` does not read what divides frequencies.
    let family = &checkpoint.manifest.model.family;
    if matches!(family, Family::Decoder(_) | Family::Variant(Variant { scaling: None, .. })) {
        export_gguf(&checkpoint, &folder.join("model.gguf"))?;
    }
    for line in std::io::stdin().lock().lines() {
        let tokens: Result<Vec<u32>, _> = line?.split_whitespace().map(str::parse).collect();
        println!("{}", answer(&mut exact, &checkpoint, &tokens?));
    }
    Ok(())
}

/// The manifest of a run with these settings on any text.
fn manifest(settings: &Path) -> Result<Manifest, Failure> {
    let text = std::fs::read_to_string(settings)?;
    let nobody = MemberId([0; 32]);
    let makers = Makers { organiser: nobody, steward: nobody, nonce: [0; 16] };
    let root = Digest::default();
    let (bytes, tokeniser) = (1 << 20, Tokeniser::Bytes);
    let start = Start::Drawn;
    let data = Data { root, bytes, held_out_root: root, held_out_bytes: 0, tokeniser, start, router: None };
    Ok(Settings::parse(settings, &text)?.manifest(&makers, data)?)
}

/// Drawn parameters, with noise of 0.3 on all vectors: a model that ignores one of them differs.
fn parameters(exact: &mut Exact, manifest: &Manifest) -> Vec<f32> {
    let mut parameters = exact.initial(manifest, &[]).parameters.into_vec();
    let layout = Layout::of_run(manifest);
    for tensor in layout.tensors().iter().filter(|tensor| tensor.shape[0] == 1) {
        for place in tensor.range() {
            let drawn = Hasher::new(Domain::DITHER).value(&(place as u64)).number();
            parameters[place] += 0.6 * (drawn as f32 / u64::MAX as f32 - 0.5);
        }
    }
    parameters
}

/// What the model reads of a window, the places that it speaks about, and its logits there.
fn answer(exact: &mut Exact, checkpoint: &Checkpoint, tokens: &[u32]) -> Value {
    let Checkpoint { manifest, state, .. } = checkpoint;
    let logits = exact.reader(manifest, &state.parameters).logits(tokens);
    let (inputs, places) = match &manifest.model.family {
        Family::Decoder(_) | Family::Mixture(_) | Family::Variant(_) => {
            (tokens.to_vec(), (0..tokens.len() as u32).collect())
        }
        Family::Albert(albert) => {
            let seed = calibration_seed(manifest.run());
            let seen = masked(&manifest.model, albert, &seed, Leaf(1), 0, tokens);
            (seen.inputs, seen.positions)
        }
    };
    let rows: Vec<&[f32]> = logits.chunks(manifest.model.vocabulary as usize).collect();
    json!({"inputs": inputs, "places": places, "logits": rows})
}
