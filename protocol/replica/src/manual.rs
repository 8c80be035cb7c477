//! What a program says about its own command line: completions for shells, and man pages.

use std::io;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::exit::{Failure, Outcome};

/// Which completions to print.
#[derive(Args, Clone, Copy, Debug)]
pub struct CompletionsArguments {
    /// The shell.
    pub shell: Shell,
}

impl CompletionsArguments {
    /// The script that completes the commands of a program.
    pub fn script(self, mut program: Command) -> String {
        let mut script = Vec::new();
        let name = program.get_name().to_owned();
        clap_complete::generate(self.shell, &mut program, name, &mut script);
        String::from_utf8_lossy(&script).into_owned()
    }
}

/// Where to write man pages.
#[derive(Args, Clone, Debug)]
pub struct ManArguments {
    /// The folder, which is made where there is none.
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

impl ManArguments {
    /// Writes a page for a program and one for each of its commands that help shows; returns their number.
    ///
    /// # Errors
    /// [`Failure`] of the disk.
    pub fn write(&self, program: Command) -> Outcome<usize> {
        let failed = |error: io::Error| {
            Failure::environment(format!("{}: cannot be written ({error})", self.out.display()))
        };
        std::fs::create_dir_all(&self.out).map_err(failed)?;
        // Otherwise each command would have a second page, that of `help COMMAND`.
        let mut program = program.disable_help_subcommand(true);
        program.build();
        pages(&program, &self.out).map_err(failed)
    }
}

/// The pages of a command and of those below it.
fn pages(command: &Command, out: &Path) -> io::Result<usize> {
    Man::new(command.clone()).manual("Muster").generate_to(out)?;
    let below = command.get_subcommands().filter(|command| !command.is_hide_set());
    below.map(|command| pages(command, out)).try_fold(1, |all, more| Ok(all + more?))
}

#[cfg(test)]
mod tests {
    use clap::{Parser, Subcommand, ValueEnum};

    use super::*;

    #[derive(Parser)]
    #[command(name = "example", version)]
    struct Example {
        #[command(subcommand)]
        command: ExampleCommand,
    }

    #[derive(Subcommand)]
    enum ExampleCommand {
        /// Has commands of its own.
        #[command(subcommand)]
        Outer(Inner),
        /// Is for the program itself.
        #[command(hide = true)]
        Hidden,
    }

    #[derive(Subcommand)]
    enum Inner {
        /// Does something.
        Inner {
            /// A number.
            #[arg(long)]
            number: Option<u8>,
        },
    }

    fn program() -> Command {
        <Example as clap::CommandFactory>::command()
    }

    #[test]
    fn every_shell_has_a_script_that_names_the_commands() {
        for shell in Shell::value_variants() {
            let script = CompletionsArguments { shell: *shell }.script(program());
            // Fish names long options without their hyphens.
            let option = if *shell == Shell::Fish { "-l number" } else { "--number" };
            assert!(script.contains("outer") && script.contains(option), "{shell}");
        }
    }

    #[test]
    fn every_command_that_help_shows_has_a_page() {
        let folder = std::env::temp_dir().join(format!("muster-man-{}", std::process::id()));
        let written = ManArguments { out: folder.clone() }.write(program());
        let mut names: Vec<_> = std::fs::read_dir(&folder)
            .expect("the folder was made")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("a plain name"))
            .collect();
        names.sort();
        std::fs::remove_dir_all(&folder).expect("the folder can go");
        assert_eq!(names, ["example-outer-inner.1", "example-outer.1", "example.1"]);
        assert_eq!(written, Ok(3));
    }
}
