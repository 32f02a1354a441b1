//! The methods of a control socket, as one enum that its server and its clients share.
//!
//! [`calls!`](crate::calls) makes the enum from a table: a line per method has its name on the
//! socket, its variant, the type of its parameters, and `long` where its answer may take longer
//! than a client may be silent.
use super::rpc::ControlError;
use serde::de::{Deserialize, DeserializeOwned, Deserializer, IgnoredAny};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use terminal::text;

/// All that a service can be asked.
pub trait Call: Serialize + DeserializeOwned {
    /// Names of the methods.
    const METHODS: &'static [&'static str];

    /// Returns the name of the method.
    fn method(&self) -> &'static str;

    /// Returns whether the answer may take longer than a client may be silent.
    fn is_long(&self) -> bool;
}

/// Parameters of a method that has none: others are passed over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Nothing;

impl Serialize for Nothing {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        Map::new().serialize(to)
    }
}

impl<'de> Deserialize<'de> for Nothing {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(from).map(|_| Self)
    }
}

/// Returns what is asked by a method's name and its parameters.
///
/// # Errors
/// There is no such method, or its parameters are wrong.
pub fn parse<C: Call>(method: &str, params: Value) -> Result<C, ControlError> {
    if !C::METHODS.contains(&method) {
        return Err(ControlError::method(method));
    }
    let members = [("method", method.into()), ("params", params)];
    let members = members.map(|(name, value)| (name.to_owned(), value));
    text::json(Value::Object(members.into_iter().collect())).map_err(|error| {
        let own = error.strip_prefix("params");
        let own = own.map(|it| it.trim_start_matches(['.', ':', ' ']).to_owned());
        ControlError::params(own.unwrap_or(error))
    })
}

/// See [`control::call`](crate::control::call).
#[macro_export]
macro_rules! calls {
    (
        $(#[$of:meta])*
        $visible:vis enum $name:ident {
            $( $(#[$doc:meta])* $method:literal => $variant:ident($params:ty) $($long:ident)?, )*
        }
    ) => {
        $(#[$of])*
        #[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
        #[serde(tag = "method", content = "params")]
        $visible enum $name {
            $( $(#[$doc])* #[serde(rename = $method)] $variant($params), )*
        }

        impl $crate::control::call::Call for $name {
            const METHODS: &'static [&'static str] = &[$($method),*];

            fn method(&self) -> &'static str {
                match self {
                    $( Self::$variant(_) => $method, )*
                }
            }

            fn is_long(&self) -> bool {
                match self {
                    $( Self::$variant(_) => [$(stringify!($long))?].contains(&"long"), )*
                }
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::json;

    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Port {
        port: u16,
    }

    crate::calls! {
        /// Of a test.
        enum Asked {
            "show" => Show(Nothing),
            "port.drop" => Drop(Port) long,
        }
    }

    fn wrong(method: &str, params: Value) -> (i64, String) {
        let error = parse::<Asked>(method, params).unwrap_err();
        (error.code(), error.to_string())
    }

    #[test]
    fn call_is_the_same_for_client_and_server() {
        assert_eq!(Asked::METHODS, ["show", "port.drop"]);
        for (call, params, is_long) in [
            (Asked::Show(Nothing), json!({}), false),
            (Asked::Drop(Port { port: 7 }), json!({"port": 7}), true),
        ] {
            let sent = serde_json::to_value(&call).unwrap();
            assert_eq!(sent, json!({"method": call.method(), "params": params}));
            let read = parse::<Asked>(call.method(), params).unwrap();
            assert_eq!((read.method(), read.is_long()), (call.method(), is_long));
        }
        for ignored in [json!(null), json!([1]), json!({"x": 1})] {
            assert!(parse::<Asked>("show", ignored).is_ok());
        }
    }

    #[test]
    fn wrong_call_has_its_code_and_no_word_of_serde() {
        let none = (-32601, "there is no method \"port\"".to_owned());
        assert_eq!(wrong("port", json!({})), none);
        for (params, words) in [
            (json!({}), "the key `port` is missing"),
            (json!({"prot": 1}), "unknown key `prot`; known here: `port`"),
            (
                json!({"port": "1"}),
                "port: must be a whole number from 0 to 65535, not the text \"1\"",
            ),
            (json!([]), "the list has too few items: 0"),
        ] {
            assert_eq!(wrong("port.drop", params), (-32602, words.to_owned()));
        }
    }
}
