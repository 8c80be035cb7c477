//! Options for how this machine computes leaves.

use clap::Args;
use muster_compute::{Device, Library, Machine, Path as KernelPath};

/// What computes leaves.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct BackendChoice {
    /// What computes leaves: exact, or tch, which is libtorch [default: what suits the run's profile].
    #[arg(long, value_name = "NAME")]
    pub backend: Option<Library>,
    /// Where libtorch computes: cpu, cuda or cuda:N [default: the first graphics processor, else cpu].
    #[arg(long, value_name = "NAME")]
    pub device: Option<Device>,
}

impl BackendChoice {
    /// With these threads and this path.
    pub fn machine(self, threads: usize, path: Option<KernelPath>) -> Machine {
        Machine { threads, path, library: self.backend, device: self.device }
    }

    /// The words that say it again.
    pub fn words(self) -> Vec<String> {
        let backend = self.backend.map(|backend| ["--backend".to_owned(), backend.to_string()]);
        let device = self.device.map(|device| ["--device".to_owned(), device.to_string()]);
        backend.into_iter().chain(device).flatten().collect()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        backend: BackendChoice,
    }

    #[test]
    fn what_is_said_can_be_said_again() {
        for words in [&[][..], &["--backend", "tch", "--device", "cuda:1"], &["--device", "cpu"]] {
            let line = Line::parse_from(["x"].iter().chain(words));
            assert_eq!(line.backend.words(), words);
        }
    }
}
