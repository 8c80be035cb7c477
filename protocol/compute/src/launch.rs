//! A program without libtorch that becomes the one beside it, which is linked with libtorch, once somebody asks for it.
//!
//! The system's loader looks for libtorch before any line of a program runs. That takes a second where libtorch is
//! installed, and of a missing library the loader gives only the name. So `muster` itself is not linked with libtorch.
//! Where libtorch is to compute, it asks the loader which libraries `muster-torch` would get. If they will not do, it says
//! what to do; otherwise it becomes `muster-torch`, which starts from the beginning with the same arguments, as after a kill.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use muster_core::error::Misuse;

use crate::backend::Libtorch;

const VERSION: &str = "2.11.0";

/// Lets this program become the one beside it as soon as anything needs libtorch.
pub fn provide() {
    let has_cuda = || {
        let _why = start(); // which `open` says again
        false
    };
    Libtorch { open: |_| Err(Misuse(start())), has_cuda }.provide();
}

/// Becomes the program with libtorch, or says why it cannot.
fn start() -> String {
    let program = match beside() {
        Ok(program) => program,
        Err(failure) => return format!("the path of this program cannot be found: {failure}"),
    };
    problem(&program).unwrap_or_else(|| {
        let mut words = std::env::args_os();
        let own_name = words.next().unwrap_or_default();
        let failure = Command::new(&program).arg0(own_name).args(words).exec();
        format!("{} cannot be started: {failure}", program.display())
    })
}

/// `muster-torch` of the folder that `muster` is in.
fn beside() -> std::io::Result<PathBuf> {
    let mut path = std::env::current_exe()?.into_os_string();
    path.push("-torch");
    Ok(path.into())
}

/// Why the loader would not start this program: what `ldd -r` shows.
fn problem(program: &Path) -> Option<String> {
    if !program.exists() {
        return Some(format!(
            "{} is missing: a program built with --features tch is two files, and both belong in one folder",
            program.display()
        ));
    }
    let mut loader = Command::new(program);
    // The first one lists libraries instead of starting the program; the others have missing functions listed, too.
    for setting in ["LD_TRACE_LOADED_OBJECTS", "LD_BIND_NOW", "LD_WARN"] {
        loader.env(setting, "1");
    }
    let output = loader.output().ok()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let remedy = format!(
        "let LD_LIBRARY_PATH begin with the folder torch/lib of a PyTorch {VERSION} (protocol/compute/libtorch.sh \
         fetches one), or put that folder torch beside this program"
    );
    let lines = || said.lines().map(str::trim);
    let missing: Vec<_> =
        lines().filter_map(|line| line.strip_suffix("=> not found")).map(str::trim).collect();
    if !missing.is_empty() {
        return Some(format!("the system finds no {}: {remedy}", missing.join(", no ")));
    }
    lines().find(|line| line.starts_with("undefined symbol") || line.contains("not found (required by")).map(
        |line| format!("the libtorch that the system finds is not the {VERSION} that this was built for ({line}): {remedy}"),
    )
}
