//! The generated parts of `spec/tolerance.md`.
//!
//! `evidence [cheats | tensors] [--size small|medium|large] [--grid 8,10,12] [--rounds N] [--leaves N] [--threads N]
//! [--device cpu|cuda:N] [--write]`: both parts unless one is named; `--write` puts them into the chapter. It takes everything
//! at hand, graphics processors included, unless a device is named. Where members may not use the kernels with defined bits,
//! tolerances are measured with and without them.

#![allow(clippy::print_stdout, clippy::print_stderr)]

use std::process::ExitCode;
use std::time::Instant;

use e2e::evidence::cheats::{self, Evidence, Gathered, Plan};
use e2e::evidence::setting::SIZES;
use e2e::evidence::tensors;
use e2e::harm::{markdown, write_into};
use muster_compute::Device;
use muster_core::error::Misuse;
use muster_core::manifest::Profile;
use muster_verifier::calibrate::machines::LeafComputer;

type Failure = Box<dyn std::error::Error>;

const CHAPTER: &str = "tolerance.md";

fn main() -> ExitCode {
    #[cfg(feature = "tch")]
    muster_compute::Torch::provide();
    let begun = Instant::now();
    match run(std::env::args().skip(1).collect()) {
        Ok(()) => {
            eprintln!("{:.0} s", begun.elapsed().as_secs_f64());
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::from(2)
        }
    }
}

fn run(mut arguments: Vec<String>) -> Result<(), Failure> {
    let write = arguments.iter().position(|argument| argument == "--write");
    write.into_iter().for_each(|place| drop(arguments.remove(place)));
    let size = taken(&mut arguments, "--size", "small".to_owned())?;
    let size = SIZES.into_iter().find(|known| known.name == size).ok_or(format!("no size {size:?}"))?;
    let rounds: u32 = taken(&mut arguments, "--rounds", 100)?;
    let mut devices: Vec<Device> = Vec::new();
    while arguments.iter().any(|argument| argument == "--device") {
        devices.push(taken(&mut arguments, "--device", Device::Cpu)?);
    }
    let threads = taken(&mut arguments, "--threads", 2)?;
    let leaves = taken(&mut arguments, "--leaves", 32)?;
    let grids: String = taken(&mut arguments, "--grid", "8,10,12".to_owned())?;
    let grids: Vec<u8> = grids.split(',').map(str::parse).collect::<Result<_, _>>()?;
    // On a processor tf32 is f32.
    let found = || LeafComputer::torch(Profile::F32, Device::Cuda(0), 1).is_ok();
    let graphics =
        if devices.is_empty() { found() } else { devices.iter().any(|device| *device != Device::Cpu) };
    let mut profiles = vec![Profile::F32, Profile::Bf16];
    if graphics {
        profiles.insert(1, Profile::Tf32);
    }
    let checkpoints = vec![(rounds / 10).max(1), (rounds / 2).max(1), rounds];
    let plan = Plan { size, grid_bits: grids[0], checkpoints, leaves, profiles, devices, threads };
    let parts = [("cheats", true), ("tensors", false)];
    for (name, of_cheats) in parts {
        if !arguments.is_empty() && !arguments.iter().any(|wanted| wanted == name) {
            continue;
        }
        let text = if of_cheats { cheats(&plan, &grids)? } else { tensors::table(&plan)? };
        println!("{text}");
        if write.is_some() {
            write_into(CHAPTER, name, &text)?;
        }
    }
    Ok(())
}

fn cheats(plan: &Plan, grids: &[u8]) -> Result<String, Failure> {
    let mut text = String::new();
    for grid_bits in grids {
        let plan = Plan { grid_bits: *grid_bits, ..plan.clone() };
        for Gathered { profile, members_only, evidence } in
            cheats::gather(&plan, &|what| eprintln!("{what}"))?
        {
            let among = if members_only { " among members" } else { "" };
            text += &format!("**Profile {}{among}, grid_bits {grid_bits}.** ", profile.name());
            text += &table(&plan, evidence);
        }
    }
    Ok(text)
}

fn table(plan: &Plan, evidence: Result<Evidence, Misuse>) -> String {
    let evidence = match evidence {
        Ok(evidence) => evidence,
        Err(Misuse(why)) => return format!("No tolerance: {why}.\n\n"),
    };
    let rounds = plan.checkpoints.iter().zip(&evidence.losses);
    let rounds: Vec<String> = rounds.map(|(round, loss)| format!("round {round} (loss {loss:.2})")).collect();
    let head: Vec<&str> =
        std::iter::once("cheat").chain(rounds.iter().map(String::as_str)).chain(["verdict"]).collect();
    format!(
        "Tolerances {}. {}\n\n{}\n",
        evidence.tolerances(),
        evidence.honest(),
        markdown(&head, evidence.rows())
    )
}

/// Takes `--name value` out of the arguments.
fn taken<T: std::str::FromStr>(arguments: &mut Vec<String>, name: &str, default: T) -> Result<T, Failure> {
    let Some(place) = arguments.iter().position(|argument| argument == name) else { return Ok(default) };
    arguments.remove(place);
    if place >= arguments.len() {
        return Err(format!("{name} needs a value").into());
    }
    let value = arguments.remove(place);
    value.parse().map_err(|_| format!("{name} {value}: not understood").into())
}
