//! Kernel paths: the instruction sets that compute the same bits.

use muster_core::error::Misuse;

/// An instruction set that the kernels are compiled for. All give the same bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Path {
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
    /// x86-64 with AVX2 and FMA.
    Avx2,
    /// 64-bit ARM.
    Neon,
    /// Any processor. Fused multiply-adds are computed in software where the target does not promise them.
    Portable,
}

impl Path {
    /// Every path, fastest first.
    pub const ALL: [Self; 4] = [Self::Avx512, Self::Avx2, Self::Neon, Self::Portable];

    /// The name that [`Path::parse`] reads.
    pub fn name(self) -> &'static str {
        match self {
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::Neon => "neon",
            Self::Portable => "portable",
        }
    }

    /// Reads a name.
    ///
    /// # Errors
    /// [`Misuse`] listing the names.
    pub fn parse(name: &str) -> Result<Self, Misuse> {
        let known = Self::ALL.into_iter().find(|path| path.name() == name);
        known.ok_or_else(|| {
            Misuse(format!("no kernel path is called {name:?}: use avx512, avx2, neon or portable"))
        })
    }

    /// The fastest path of this processor.
    pub fn detect() -> Self {
        Self::ALL.into_iter().find(|path| path.available()).unwrap_or(Self::Portable)
    }

    /// Whether this processor has it.
    pub fn available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            // Kernels of this path are compiled with AVX2 and FMA, too.
            Self::Avx512 => {
                Self::Avx2.available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx512 | Self::Avx2 => false,
            // Every processor of this architecture has it.
            Self::Neon => cfg!(target_arch = "aarch64"),
            Self::Portable => true,
        }
    }
}

/// The paths of this processor, fastest first.
pub fn paths() -> Vec<Path> {
    Path::ALL.into_iter().filter(|path| path.available()).collect()
}

/// Proof that this processor has a path: what the kernels take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kernels(Path);

impl Kernels {
    /// # Errors
    /// [`Misuse`] naming a path that this processor lacks.
    pub(crate) fn new(path: Path) -> Result<Self, Misuse> {
        if !path.available() {
            return Err(Misuse(format!("this processor has no {} kernels", path.name())));
        }
        Ok(Self(path))
    }

    /// The fastest path of this processor.
    pub(crate) fn detect() -> Self {
        Self(Path::detect())
    }

    pub(crate) fn path(self) -> Path {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back() {
        for path in Path::ALL {
            assert_eq!(Path::parse(path.name()), Ok(path));
            assert_eq!(Kernels::new(path).is_ok(), path.available());
        }
        assert!(Path::parse("AVX2").is_err());
        assert_eq!(paths().last(), Some(&Path::Portable));
        assert_eq!(paths()[0], Path::detect());
    }
}
