"""The checks that span sections of a training job: `table` lists them, `support` what conflicts."""
