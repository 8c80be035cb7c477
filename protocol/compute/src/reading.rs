//! Reading with a model: on the processor or on a device, with the same bits.

use muster_core::error::Misuse;
use muster_core::manifest::{Manifest, Profile};

use crate::backend::{Backend, DeviceChoice};
use crate::devices;
use crate::exact::{Exact, Reader};
use crate::gpu::Gpu;
use crate::machine::{Choice, Machine};

/// What reads with a model.
pub enum Reading {
    /// The processor.
    Processor(Box<Exact>),
    /// A device, beside the processor that goes on where it fails.
    Device(Box<Gpu>),
}

impl Machine {
    /// What reads with a model here, in defined bits: of several devices the first one.
    ///
    /// # Errors
    /// [`Misuse`] with the reason and the remedy where a device that is named is missing, or does not give the known answers, or where
    /// the processor lacks the path.
    pub fn reading(&self) -> Result<Reading, Misuse> {
        if matches!(self.device, DeviceChoice::Cuda(_)) {
            let why = "cuda is where libtorch computes, which reads no text: a graphics processor that does is --device gpu:N";
            return Err(Misuse(why.into()));
        }
        let number = match self.choose(Profile::Exact)? {
            Choice::Gpu(number) => number,
            Choice::Gpus(numbers) => numbers.each().next().unwrap_or_default(),
            Choice::Either => {
                let found = devices::first(|| self.exact());
                return Ok(match found {
                    Ok(gpu) => Reading::Device(Box::new(gpu)),
                    Err(_) => Reading::Processor(Box::new(self.exact()?)),
                });
            }
            Choice::Exact | Choice::Tch(..) => return Ok(Reading::Processor(Box::new(self.exact()?))),
        };
        let mut gpu = devices::open(number, self.exact()?)?;
        gpu.self_test()?;
        Ok(Reading::Device(Box::new(gpu)))
    }
}

impl Reading {
    /// The processor, for everything else.
    pub fn exact(&mut self) -> &mut Exact {
        match self {
            Self::Processor(exact) => exact,
            Self::Device(gpu) => &mut gpu.exact,
        }
    }

    /// What reads, in a few words.
    pub fn describe(&self) -> String {
        match self {
            Self::Processor(exact) => exact.describe(),
            Self::Device(gpu) => gpu.describe(),
        }
    }

    /// Takes a model's parameters once, to read many texts with them.
    pub fn with<'a>(&'a mut self, manifest: &'a Manifest, parameters: &'a [f32]) -> TextReader<'a> {
        match self {
            Self::Processor(exact) => TextReader {
                device: None,
                reader: Some(exact.reader(manifest, parameters)),
                manifest,
                parameters,
            },
            Self::Device(gpu) => {
                TextReader { device: Some((gpu, false)), reader: None, manifest, parameters }
            }
        }
    }
}

/// Parameters that texts are read with.
pub struct TextReader<'a> {
    /// A device that has not failed, and whether it has the parameters.
    device: Option<(&'a mut Gpu, bool)>,
    /// The processor, where no device reads.
    reader: Option<Reader<'a>>,
    manifest: &'a Manifest,
    parameters: &'a [f32],
}

impl TextReader<'_> {
    /// A decoder's logits of the token that follows these. Where the device fails, the processor goes on.
    ///
    /// # Panics
    /// When there are no tokens, or more than a window has.
    pub fn after(&mut self, tokens: &[u32]) -> Vec<f32> {
        let Self { device, reader, manifest, parameters } = self;
        if let Some((gpu, there)) = device {
            let logits = gpu.after(manifest, (!*there).then_some(*parameters), tokens);
            *there = true;
            if let Some(logits) = logits {
                return logits;
            }
        }
        if let Some((gpu, _)) = device.take() {
            *reader = Some(gpu.exact.reader(manifest, parameters));
        }
        reader.as_mut().expect("the processor, where no device reads").after(tokens)
    }
}
