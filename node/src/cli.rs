//! The command line of `muster`: its commands, and their exit codes.
#![allow(clippy::print_stderr)]

mod act;
mod arguments;
mod company;
mod generate;
mod options;
mod output;
mod plan;
mod runtime;
mod status;
mod workload;

use std::ffi::OsString;
use std::io::{IsTerminal, Write};

use clap::Parser;
use muster_net::capacity::Capacity;
use muster_show::board::wants_colour;
use muster_show::lines::LogWriter;

use arguments::MusterCli;

/// Carries out the command in these arguments, the first being the program's name, and returns the exit code.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let cli = match MusterCli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(2);
        }
    };
    log_to_stderr(cli.verbose);
    // CHAN-13: raises the limit, before anything is opened.
    Capacity::of_process();
    match act::act(cli.command) {
        Ok(exit) => exit.code(),
        Err(failure) => {
            let _ = writeln!(std::io::stderr(), "muster: {failure}");
            failure.exit.code()
        }
    }
}

/// Crates of the workspace that say in their logs what people want to see.
const LOGGED: [&str; 12] = [
    "host", "keeper", "member", "net", "node", "organise", "rehearse", "replica", "roles", "show", "store",
    "verifier",
];

/// What others' crates that carry bytes report is for their authors. What concerns people comes back as an error.
const LIBRARIES: &str = "libp2p=error,iroh=off,iroh_relay=off,noq=off,noq_proto=off,noq_udp=off,netwatch=off,\
                         portmapper=off,n0_future=off";

/// Sends logs to standard error. Only the first call of a process counts.
pub fn log_to_stderr(verbose: u8) {
    let level = ["info", "debug", "trace"][usize::from(verbose.min(2))];
    let own = LOGGED.map(|name| format!("muster_{name}={level}")).join(",");
    let wanted = format!("warn,{LIBRARIES},{own}");
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| wanted.into());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_target(verbose > 0);
    let colour = std::io::stderr().is_terminal() && wants_colour();
    // A terminal may be gone before the round is finished.
    let _ = log.with_writer(|| LogWriter).with_ansi(colour).log_internal_errors(false).try_init();
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use muster_replica::exit::Exit;

    use super::arguments::MusterCommand;
    use super::*;

    fn code(arguments: &[&str]) -> u8 {
        run(std::iter::once("muster").chain(arguments.iter().copied()).map(OsString::from))
    }

    #[test]
    fn the_definition_is_sound() {
        MusterCli::command().debug_assert();
    }

    #[test]
    fn a_prompt_may_begin_with_a_hyphen() {
        for prompt in ["- x", "-x", "--tokens"] {
            let cli =
                MusterCli::try_parse_from(["muster", "generate", "DIR", "--prompt", prompt, "--tokens", "3"]);
            let Ok(MusterCli { command: MusterCommand::Generate(arguments), .. }) = cli else {
                panic!("{prompt}")
            };
            assert_eq!((arguments.prompt.as_str(), arguments.tokens), (prompt, 3));
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_run_beyond_this_machine_is_made_elsewhere_and_not_hosted_here() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name).display().to_string();
        let settings = "[model]\nwidth = 8192\nlayers = 10\nheads = 64\nkey_value_heads = 8\nhidden = 22016\n\
                        [training]\nrounds = 16000\n[retention]\nstates = 4096\n";
        std::fs::write(at("run.toml"), settings).unwrap();
        std::fs::write(at("text.txt"), "All happy families are alike. ".repeat(200)).unwrap();
        assert_eq!(code(&["data", "pack", "--text", &at("text.txt"), "--out", &at("corpus")]), 0);
        let (config, corpus, out) = (at("run.toml"), at("corpus"), at("myrun"));
        let new = ["run", "new", "--config", &config, "--data", &corpus, "--out", &out];
        assert_eq!(code(&new), Exit::Usage.code());
        assert_eq!(code(&[&new[..], &["--elsewhere"]].concat()), Exit::Good.code());
        assert_eq!(code(&["host", &out]), Exit::Environment.code());
    }

    #[test]
    fn exit_codes() {
        assert_eq!(code(&["--help"]), 0);
        assert_eq!(code(&["hos"]), 2);
        assert_eq!(code(&["invite", "x", "--role", "king"]), 2);
        assert_eq!(code(&["invite", "x", "--role", "node", "--expires", "soon"]), 2);
        assert_eq!(code(&["join", "muster2:00"]), 2);
        let made = ["data", "pack", "--text", "x", "--out", "/nonexistent/out", "--train-tokenizer"];
        for more in
            [&["299"][..], &["300", "--tokenizer", "y"], &["300", "--end", "y"], &["300", "--control-words"]]
        {
            assert_eq!(code(&[&made[..], more].concat()), 2, "{more:?}");
        }
        assert_eq!(code(&["host", "/nonexistent/run"]), 3);
        assert_eq!(code(&["invite", "/nonexistent/run", "--role", "node"]), 3);
        assert_eq!(code(&["invite", "/nonexistent/run", "--founder"]), 2);
        assert_eq!(code(&["members", "/nonexistent/run"]), 3);
        assert_eq!(code(&["close-tree", "/nonexistent/run", "00"]), 3);
        assert_eq!(code(&["host", "/nonexistent/run", "--per-address", "0"]), 2);
        assert_eq!(code(&["leave", "--data-dir", "/nonexistent/home"]), 3);
        assert_eq!(code(&["completions", "bash"]), 0);
        assert_eq!(code(&["completions", "tcsh"]), 2);
        assert_eq!(code(&["man", "--out", "/proc/nothing"]), 3);
        assert_eq!(code(&["doctor", "--listen", "192.0.2.1:7777"]), 1);
        assert_eq!(code(&["doctor", "muster1:x"]), 2);
        assert_eq!(code(&["doctor", "/nonexistent/run.toml"]), 3);
        assert_eq!(code(&["join", "@/nonexistent/line"]), 3);
        assert_eq!(code(&["run", "new", "--preset", "huge", "--data", "corpus", "--out", "x"]), 2);
    }
}
