import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
print(parser.parse_args().local_rank)
