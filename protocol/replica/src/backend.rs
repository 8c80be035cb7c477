//! Options for how this machine computes leaves.

use clap::Args;
use muster_compute::{DeviceChoice, Library, Machine, Path as KernelPath};

/// What computes leaves.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct BackendChoice {
    /// What computes leaves: exact, or tch, which is libtorch [default: what suits the run's profile].
    #[arg(long, value_name = "NAME")]
    pub backend: Option<Library>,
    /// Where leaves are computed: auto, cpu, gpu or gpu:N; by libtorch cpu, cuda or cuda:N [default: auto].
    ///
    /// gpu:N is the device of that number in the list of `muster doctor`, gpu the first one; gpu:0,gpu:1 takes leaves by turns, as
    /// fast as two of the slower one. It gives the same bits as the
    /// processor, and needs its vendor's driver and OpenCL's loader (Debian: ocl-icd-libopencl1); NVIDIA's CUDA will do, too.
    /// auto takes the first graphics processor that gives the known answers, else the processor. By libtorch, it is the first
    /// one that libtorch sees.
    #[arg(long, value_name = "NAME")]
    pub device: Option<DeviceChoice>,
}

impl BackendChoice {
    /// With these threads and this path.
    pub fn machine(self, threads: usize, path: Option<KernelPath>) -> Machine {
        Machine { threads, path, library: self.backend, device: self.device.unwrap_or_default() }
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
        let torch = ["--backend", "tch", "--device", "cuda:1"];
        for words in [
            &[][..],
            &torch,
            &["--device", "cpu"],
            &["--device", "gpu:1"],
            &["--device", "gpu:0,gpu:2"],
            &["--device", "auto"],
        ] {
            let line = Line::parse_from(["x"].iter().chain(words));
            assert_eq!(line.backend.words(), words);
        }
    }
}
