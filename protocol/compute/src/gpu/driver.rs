//! What a device does for us: memory, copies, kernels in order. [`super::opencl`] and [`super::cuda`] do it.

use std::fmt;

/// Work-items of a group, in every kernel.
pub(crate) const ITEMS: u64 = 256;

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Description {
    /// By its vendor.
    pub name: String,
    /// The library and the driver that reach it: another one is another device.
    pub driver: String,
    /// Bytes of memory.
    pub memory: u64,
    /// Bytes of the largest single buffer.
    pub largest: u64,
    /// Whether it is a graphics processor, and not a processor that pretends to be one.
    pub graphics: bool,
    /// Units that compute at the same time.
    pub units: u32,
    /// Whether it has f64, with which it puts gradients on the grid.
    pub wide: bool,
}

/// Why a device did not do what it was asked for. What it has computed so far is void.
#[derive(Clone, Debug)]
pub(crate) struct Fault(pub String);

impl Fault {
    pub(crate) fn new(what: &str, why: impl fmt::Display) -> Self {
        Self(format!("{what}: {why}"))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

pub(crate) type Outcome<T> = Result<T, Fault>;

/// Memory of a device, by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory(pub usize);

/// A place in a device's memory, in values of four bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub memory: Memory,
    pub first: usize,
}

impl Place {
    /// So many values further on.
    pub(crate) fn after(self, values: usize) -> Self {
        Self { first: self.first + values, ..self }
    }
}

/// One of two places of the host that copies arrive at: one may be read while the other is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Slot {
    #[default]
    Even,
    Odd,
}

impl Slot {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Even => Self::Odd,
            Self::Odd => Self::Even,
        }
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Argument {
    Int(i32),
    Long(u64),
    Real(f32),
    Wide(f64),
    /// Two of them: where the memory begins, and the offset.
    At(Place),
}

/// A device. Commands are carried out in order; a download waits for those before it.
pub(crate) trait Driver: Send {
    fn description(&self) -> &Description;

    /// Memory whose contents are not defined.
    fn allocate(&mut self, bytes: usize) -> Outcome<Memory>;

    fn release(&mut self, memory: Memory);

    fn upload(&mut self, to: Place, bytes: &[u8]) -> Outcome<()>;

    fn download(&mut self, from: Place, bytes: &mut [u8]) -> Outcome<()>;

    /// Begins to copy some bytes to a slot of the host's memory, after all commands so far; those that follow go on beside it.
    fn stage(&mut self, slot: Slot, from: Place, bytes: usize) -> Outcome<()>;

    /// Waits for these bytes.
    fn staged(&mut self, slot: Slot) -> Outcome<&[u8]>;

    /// Sets values to +0.
    fn clear(&mut self, at: Place, values: usize) -> Outcome<()>;

    fn launch(&mut self, kernel: &'static str, groups: u64, arguments: &[Argument]) -> Outcome<()>;

    /// Waits until all is done.
    fn finish(&mut self) -> Outcome<()>;
}

/// Products: the name of the kernel, and how its source is read.
struct Variant {
    name: &'static str,
    tile: u32,
    /// Whether the depth lies contiguous in either factor.
    deep: [bool; 2],
    heads: bool,
}

const VARIANTS: [Variant; 9] = [
    Variant { name: "forward_large", tile: 128, deep: [true, true], heads: false },
    Variant { name: "forward_small", tile: 64, deep: [true, true], heads: false },
    Variant { name: "backward_large", tile: 128, deep: [true, false], heads: false },
    Variant { name: "backward_small", tile: 64, deep: [true, false], heads: false },
    Variant { name: "weigh_large", tile: 128, deep: [false, false], heads: false },
    Variant { name: "weigh_small", tile: 64, deep: [false, false], heads: false },
    Variant { name: "heads_forward", tile: 64, deep: [true, true], heads: true },
    Variant { name: "heads_backward", tile: 64, deep: [true, false], heads: true },
    Variant { name: "heads_weigh", tile: 64, deep: [false, false], heads: true },
];

/// Products of aligned factors: the name, whether the depth lies contiguous in either, the slice, whether the next factors are
/// fetched beside the present ones, and whether some products are a group. On an H100 each is the fastest of those tried.
const TILES: [(&str, [u8; 2], usize, u8, u8); 4] = [
    ("forward_fast", [1, 1], 8, 0, 0),
    ("backward_fast", [1, 0], 8, 1, 0),
    ("weigh_fast", [0, 0], 16, 1, 0),
    ("weigh_group", [0, 0], 16, 1, 1),
];

/// What the depth of an aligned product must be a multiple of.
pub(crate) const DEPTH: usize = 16;

/// The kernels beside products.
const ROWS: [&str; 29] = [
    "rms_norm",
    "rms_norm_back",
    "norm_heads",
    "norm_heads_back",
    "add_rows",
    "rotate_heads",
    "softmax",
    "softmax_back",
    "swiglu",
    "swiglu_back",
    "cross_entropy",
    "subtract_targets",
    "gather",
    "embed_back",
    "functions",
    "sigmoids",
    "sigmoids_back",
    "weigh_rows",
    "weighted_swiglu_back",
    "layer_norm",
    "layer_norm_sums",
    "multiply_columns",
    "layer_norm_back",
    "bias_rows",
    "scale_columns",
    "add_vectors",
    "gelu",
    "gelu_back",
    "grid",
];

/// Names of all kernels that a device with or without f64 has.
pub(crate) fn names(wide: bool) -> impl Iterator<Item = &'static str> {
    let rows = ROWS.into_iter().filter(move |name| wide || *name != "grid");
    rows.chain(VARIANTS.iter().map(|variant| variant.name)).chain(TILES.iter().map(|(name, ..)| *name))
}

/// The source of all kernels, after the words of a language.
pub(crate) fn source(language: &str, wide: bool) -> String {
    let mut text = String::new();
    if wide {
        text.push_str("#define WIDE\n");
    }
    text.push_str(language);
    text.push_str(include_str!("rows.cl"));
    text.push_str(include_str!("mixture.cl"));
    text.push_str(include_str!("albert.cl"));
    for Variant { name, tile, deep, heads } in &VARIANTS {
        let [a, b, heads] = [deep[0], deep[1], *heads].map(u8::from);
        text.push_str(&format!(
            "#define NAME {name}\n#define TILE {tile}\n#define A_DEEP {a}\n#define B_DEEP {b}\n#define HEADS {heads}\n"
        ));
        text.push_str(include_str!("product.cl"));
    }
    for (name, [a, b], depth, ahead, grouped) in &TILES {
        text.push_str(&format!(
            "#define NAME {name}\n#define A_DEEP {a}\n#define B_DEEP {b}\n#define DEPTH {depth}\n#define AHEAD {ahead}\n\
             #define GROUPED {grouped}\n"
        ));
        text.push_str(include_str!("tiles.cl"));
    }
    text
}
