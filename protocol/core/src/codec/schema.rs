//! What the bytes of each type are, said by the types themselves: `spec/schema.json` is written from it, and other programs compare
//! their own tables with that file.

use std::collections::BTreeMap;

use super::{Bytes, List, Real, Text};
use crate::ids::{
    Block, Digest, EndpointKey, Height, Leaf, MemberId, Part, Round, Row, RowSet, RunId, ShardId, ShareClass,
    Slot,
};

/// The bytes of one value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Shape {
    /// An unsigned integer of this many bytes.
    Integer(usize),
    /// A signed integer of this many bytes.
    Signed(usize),
    /// This many bytes, bare.
    Raw(usize),
    /// Values one after the other, bare.
    Row(Vec<Shape>),
    /// At most this many bytes, after their number.
    Bytes(usize),
    /// At most this many bytes of text, after their number.
    Text(usize),
    /// The bits of an `f32`.
    Real,
    /// One byte, 0 or 1.
    Bool,
    /// One byte, 0 or 1; after 1 a value.
    Option(Box<Shape>),
    /// At most this many values, after their number.
    List(Box<Shape>, usize),
    /// One byte, which stands for one of these names, counted from 0.
    Choice(Vec<&'static str>),
    /// One byte, which stands for one of these names, counted from 0; after it what belongs to the name.
    Tagged(Vec<(&'static str, Option<Shape>)>),
    /// A type of [`Schema`].
    Named(&'static str),
}

/// Structures and enumerations by name.
#[derive(Debug, Default)]
pub struct Schema {
    /// Fields of each structure, in order.
    pub structs: BTreeMap<&'static str, Vec<(&'static str, Shape)>>,
    /// Variants of each enumeration, in order, with what follows their byte.
    pub enums: BTreeMap<&'static str, Vec<(&'static str, Option<Shape>)>>,
}

/// A type whose bytes are known. [`wire!`](crate::wire) and [`choice!`](crate::choice) say them for what they declare.
pub trait Described {
    /// Its bytes. Types that have names are added to the schema.
    fn shape(schema: &mut Schema) -> Shape;
}

macro_rules! described {
    ($($type:ty: $shape:expr),* $(,)?) => { $(
        impl Described for $type {
            fn shape(_: &mut Schema) -> Shape {
                $shape
            }
        }
    )* };
}

described! {
    u8: Shape::Integer(1), u16: Shape::Integer(2), u32: Shape::Integer(4), u64: Shape::Integer(8),
    i32: Shape::Signed(4), i64: Shape::Signed(8),
    bool: Shape::Bool, Real: Shape::Real,
    ShareClass: Shape::Integer(1), Slot: Shape::Integer(2), Part: Shape::Integer(2), Row: Shape::Integer(2), ShardId: Shape::Integer(2),
    Round: Shape::Integer(4), Block: Shape::Integer(4),
    Height: Shape::Integer(8), Leaf: Shape::Integer(8), RowSet: Shape::Integer(8),
    Digest: Shape::Raw(32), RunId: Shape::Raw(32), MemberId: Shape::Raw(32), EndpointKey: Shape::Raw(32),
}

impl<const N: usize> Described for [u8; N] {
    fn shape(_: &mut Schema) -> Shape {
        Shape::Raw(N)
    }
}

impl<const N: usize> Described for [u64; N] {
    fn shape(schema: &mut Schema) -> Shape {
        Shape::Row(vec![u64::shape(schema); N])
    }
}

impl<const MAX: usize> Described for Bytes<MAX> {
    fn shape(_: &mut Schema) -> Shape {
        Shape::Bytes(MAX)
    }
}

impl<const MAX: usize> Described for Text<MAX> {
    fn shape(_: &mut Schema) -> Shape {
        Shape::Text(MAX)
    }
}

impl<T: Described> Described for Option<T> {
    fn shape(schema: &mut Schema) -> Shape {
        Shape::Option(Box::new(T::shape(schema)))
    }
}

impl<T: Described> Described for Box<T> {
    fn shape(schema: &mut Schema) -> Shape {
        T::shape(schema)
    }
}

impl<T: Described, const MAX: usize> Described for List<T, MAX> {
    fn shape(schema: &mut Schema) -> Shape {
        Shape::List(Box::new(T::shape(schema)), MAX)
    }
}
