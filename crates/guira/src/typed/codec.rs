//! Formats of keys and values.

/// A format that `T`s are stored in. Equal keys have to have equal bytes.
pub trait Codec<T: ?Sized> {
    /// Appends the bytes of `value` to `into`.
    ///
    /// # Errors
    /// The reason why it has none.
    fn encode(value: &T, into: &mut Vec<u8>) -> Result<(), String>;
}

/// A format that `T`s can be read from.
pub trait Decode<T> {
    /// The `T` whose bytes these are.
    ///
    /// # Errors
    /// The reason why they are of none.
    fn decode(bytes: &[u8]) -> Result<T, String>;
}

/// The format of postcard, for types with serde's `Serialize` and `DeserializeOwned`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Postcard;

/// Values as they lie in memory, for types with zerocopy's `IntoBytes`, `Immutable` and `FromBytes`.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Plain;

#[cfg(feature = "serde")]
impl<T: serde::Serialize + ?Sized> Codec<T> for Postcard {
    fn encode(value: &T, into: &mut Vec<u8>) -> Result<(), String> {
        postcard::to_io(value, into).map(drop).map_err(|error| error.to_string())
    }
}

#[cfg(feature = "serde")]
impl<T: serde::de::DeserializeOwned> Decode<T> for Postcard {
    fn decode(bytes: &[u8]) -> Result<T, String> {
        match postcard::take_from_bytes(bytes) {
            Ok((value, [])) => Ok(value),
            Ok((_, rest)) => Err(format!("{} bytes are left", rest.len())),
            Err(error) => Err(error.to_string()),
        }
    }
}

#[cfg(feature = "zerocopy")]
impl<T: zerocopy::IntoBytes + zerocopy::Immutable + ?Sized> Codec<T> for Plain {
    fn encode(value: &T, into: &mut Vec<u8>) -> Result<(), String> {
        into.extend_from_slice(value.as_bytes());
        Ok(())
    }
}

#[cfg(feature = "zerocopy")]
impl<T: zerocopy::FromBytes> Decode<T> for Plain {
    fn decode(bytes: &[u8]) -> Result<T, String> {
        T::read_from_bytes(bytes).map_err(|_| format!("{} bytes in place of {}", bytes.len(), size_of::<T>()))
    }
}
