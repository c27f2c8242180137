//! Enums whose values are words: the same in JSON, in the configuration and on the command line.

/// One of a few words.
pub trait Word: Copy + 'static {
    const WORDS: &'static [(&'static str, Self)];
}

/// Declares an enum together with the word of each of its values.
macro_rules! words {
    ($(#[$attribute:meta])* pub enum $name:ident { $($(#[$about:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$attribute])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        pub enum $name {
            $($(#[$about])* #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            pub const ALL: [Self; <[&str]>::len(&[$($word),*])] = [$(Self::$variant),*];

            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }

        impl $crate::protocol::word_enums::Word for $name {
            const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$variant)),*];
        }
    };
}
pub(crate) use words;

/// Declares the texts of a type whose field `0` is the language, as methods: the English text first, then the Chinese
/// one. A text with parameters names them in braces.
macro_rules! bilingual {
    (@one $(#[$about:meta])* $name:ident($($parameter:ident: $kind:ty),*), $english:literal, $chinese:literal) => {
        $(#[$about])*
        pub fn $name(self, $($parameter: $kind),*) -> String {
            match self.0 {
                $crate::protocol::ask::Language::English => format!($english),
                $crate::protocol::ask::Language::Chinese => format!($chinese),
            }
        }
    };
    (@one $(#[$about:meta])* $name:ident, $english:literal, $chinese:literal) => {
        $(#[$about])*
        pub fn $name(self) -> &'static str {
            match self.0 {
                $crate::protocol::ask::Language::English => $english,
                $crate::protocol::ask::Language::Chinese => $chinese,
            }
        }
    };
    ($(
        $(#[$about:meta])*
        $name:ident $(($($parameter:ident: $kind:ty),*))? => $english:literal, $chinese:literal;
    )*) => {
        $($crate::protocol::word_enums::bilingual!(
            @one $(#[$about])* $name $(($($parameter: $kind),*))?, $english, $chinese
        );)*
    };
}
pub(crate) use bilingual;
