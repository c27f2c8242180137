//! The keywords of JSON Schema that Belljar knows, and what their values look like.

/// What the value of a keyword has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Schema,
    /// A list of one or more schemas.
    Schemas,
    /// Schemas by name.
    SchemasByName,
    /// Schemas by the pattern of a field's name.
    SchemasByPattern,
    /// A schema, or a list of schemas as in draft 7.
    Items,
    /// A schema or a list of names, by name, as in draft 7.
    Dependencies,
    Names,
    NamesByName,
    Types,
    List,
    Count,
    Number,
    PositiveNumber,
    Boolean,
    Pattern,
    Reference,
    /// The version of JSON Schema, of which a schema has one.
    Version,
    /// A keyword that Belljar cannot hold values against.
    Unsupported,
    /// A schema for what no other keyword looked at. Belljar does not know what that is, so only the schema that
    /// allows everything is supported.
    Unevaluated,
    /// Anything at all: constants, annotations and keywords that mean nothing here.
    Anything,
}

pub(super) fn form(keyword: &str) -> Form {
    match keyword {
        "not"
        | "if"
        | "then"
        | "else"
        | "contains"
        | "propertyNames"
        | "additionalProperties"
        | "additionalItems" => Form::Schema,
        "allOf" | "anyOf" | "oneOf" | "prefixItems" => Form::Schemas,
        "properties" | "$defs" | "definitions" | "dependentSchemas" => Form::SchemasByName,
        "patternProperties" => Form::SchemasByPattern,
        "items" => Form::Items,
        "dependencies" => Form::Dependencies,
        "required" => Form::Names,
        "dependentRequired" => Form::NamesByName,
        "type" => Form::Types,
        "enum" => Form::List,
        "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties"
        | "minContains" | "maxContains" => Form::Count,
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => Form::Number,
        "multipleOf" => Form::PositiveNumber,
        "uniqueItems" => Form::Boolean,
        "pattern" => Form::Pattern,
        "$ref" => Form::Reference,
        "$schema" => Form::Version,
        "$id" | "$anchor" | "$dynamicRef" | "$dynamicAnchor" | "$recursiveRef" => Form::Unsupported,
        "unevaluatedProperties" | "unevaluatedItems" => Form::Unevaluated,
        _ => Form::Anything,
    }
}

impl Form {
    /// What the value of a keyword has to be, in words for a person.
    pub fn words(self) -> &'static str {
        match self {
            Self::Schema => "a schema: an object or a boolean",
            Self::Schemas => "a list of one or more schemas",
            Self::SchemasByName => "an object of schemas",
            Self::SchemasByPattern => "an object of schemas by patterns",
            Self::Items => "a schema, or a list of schemas without `prefixItems`",
            Self::Dependencies => "an object of schemas or lists of texts",
            Self::Names => "a list of texts",
            Self::NamesByName => "an object of lists of texts",
            Self::Types => "one or more of array, boolean, integer, null, number, object and string",
            Self::List => "a list",
            Self::Count => "an integer that is not negative",
            Self::Number => "a number",
            Self::PositiveNumber => "a number above 0",
            Self::Boolean => "true or false",
            Self::Pattern | Self::Reference | Self::Version => "a text",
            Self::Unsupported | Self::Unevaluated | Self::Anything => "something else",
        }
    }
}
