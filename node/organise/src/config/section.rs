//! A table of `run.toml`: each setting with its default and, where the manifest has the same table, with the manifest's field.

/// Declares a table. After `as "key" for Type` each setting also says which field of that type it becomes, and by which function of
/// [`super::number`] where people write another number; `checked` makes the type.
macro_rules! section {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

        impl Default for $name {
            fn default() -> Self {
                Self { $($field: $default,)* }
            }
        }
    };
    ($(#[$doc:meta])* $name:ident as $key:literal for $of:ty {
        $($(#[$field_doc:meta])* $field:ident: $type:ty = $default:expr => $target:ident $(by $convert:ident)?),* $(,)?
    }) => {
        $crate::config::section::section! {
            $(#[$doc])* $name { $($(#[$field_doc])* $field: $type = $default),* }
        }

        impl $name {
            /// What the manifest says of it.
            pub(super) fn checked(&self) -> Result<$of, muster_core::error::Misuse> {
                type Made = $of;
                $(
                    let $target = self.$field;
                    $(let $target = $convert(concat!($key, ".", stringify!($field)), $target)?;)?
                )*
                Ok(Made { $($target),* })
            }
        }
    };
}

pub(super) use section;
