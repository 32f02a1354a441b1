//! Fields of fixed structures, each named once: parser and builder can't disagree about an offset.
use super::put;

/// A value with a fixed little-endian form.
pub(crate) trait Field: Copy {
    /// From the bytes at `at`, which lie within the structure.
    fn load(bytes: &[u8], at: usize) -> Self;
    /// Into the bytes at `at`, which lie within the structure.
    fn store(self, bytes: &mut [u8], at: usize);
}

macro_rules! integers {
    ($($t:ty)*) => {$(
        impl Field for $t {
            fn load(bytes: &[u8], at: usize) -> Self {
                let mut b = [0; size_of::<$t>()];
                b.copy_from_slice(&bytes[at..at + size_of::<$t>()]);
                Self::from_le_bytes(b)
            }
            fn store(self, bytes: &mut [u8], at: usize) {
                put(bytes, at, &self.to_le_bytes());
            }
        }
    )*};
}
integers!(u8 u16 u32 u64 u128);

impl<const N: usize> Field for [u8; N] {
    fn load(bytes: &[u8], at: usize) -> Self {
        let mut b = [0; N];
        b.copy_from_slice(&bytes[at..at + N]);
        b
    }
    fn store(self, bytes: &mut [u8], at: usize) {
        put(bytes, at, &self);
    }
}

/// Declares the plain form of a structure of `$len` bytes: `field: type @ offset`.
macro_rules! structure {
    (
        $(#[$meta:meta])*
        pub struct $name:ident [$len:expr] {
            $($(#[$fmeta:meta])* $field:ident: $t:ty = $at:literal,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $name {
            $($(#[$fmeta])* pub $field: $t,)*
        }

        impl Default for $name {
            /// All zeroes.
            fn default() -> Self {
                Self::load(&[0; $len])
            }
        }

        impl $name {
            /// Bytes on the wire.
            pub const LEN: usize = $len;

            /// From the start of `bytes`.
            ///
            /// # Errors
            /// [`WireError::Truncated`](super::WireError::Truncated) if there are fewer than `LEN`.
            pub fn parse(bytes: &[u8]) -> Result<Self, super::WireError> {
                super::exact::<$len>(bytes).map(Self::load)
            }

            fn load(bytes: &[u8; $len]) -> Self {
                Self { $($field: super::layout::Field::load(bytes, $at),)* }
            }

            /// The fields at their places, zeroes between them.
            pub fn emit(&self) -> [u8; $len] {
                let mut bytes = [0; $len];
                $(super::layout::Field::store(self.$field, &mut bytes, $at);)*
                bytes
            }
        }
    };
}
pub(crate) use structure;

/// A fixed ASCII field padded with spaces (Base 2.0, 1.4.2); longer text is cut.
pub fn padded<const N: usize>(text: &str) -> [u8; N] {
    let mut b = [b' '; N];
    let n = text.len().min(N);
    b[..n].copy_from_slice(&text.as_bytes()[..n]);
    b
}

/// A fixed field that ends with a NUL; longer text is cut.
pub fn terminated<const N: usize>(text: &str) -> [u8; N] {
    let mut b = [0; N];
    let n = text.len().min(N - 1);
    b[..n].copy_from_slice(&text.as_bytes()[..n]);
    b
}

/// The text of a fixed field: up to a NUL, without surrounding spaces, nothing if it isn't UTF-8.
pub fn text(field: &[u8]) -> &str {
    let end = field.iter().position(|&b| b == 0).unwrap_or(field.len());
    core::str::from_utf8(&field[..end])
        .unwrap_or("")
        .trim_matches(' ')
}
