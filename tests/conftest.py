"What every test shares."
import gc

def pytest_unconfigure():
    "Each notebook leaves a shell that collects garbage when Python ends, a hundred times over everything: nothing is left to find."
    gc.collect()
    gc.freeze()
