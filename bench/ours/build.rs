//! Generates verbwire's stubs of the benchmark's services.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    verbwire_codegen::configure().compile(&["../proto/echo.proto"], &["../proto"])?;
    verbwire_codegen::configure().compile(&["proto/bulk.proto"], &["proto"])?;
    Ok(())
}
