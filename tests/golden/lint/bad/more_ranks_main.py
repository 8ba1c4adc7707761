import os

import torch

torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
print(torch.zeros(1).cuda())
